import { writeFileSync } from "node:fs";
import { setTimeout as delay } from "node:timers/promises";
import { describe, expect, it } from "vitest";
import { clientsOf } from "../support/clients.ts";
import { failureOf } from "../support/errors.ts";
import { temporaryFile } from "../support/folder.ts";
import { needsMongo, startWithUsers } from "../support/mongodb.ts";
import { aCreate } from "../support/records.ts";
import { startInProcess } from "../support/server.ts";
import { ask, waitFor } from "../support/service.ts";

/** Expects all of a reply, without an error. */
async function expectWhole(reply: Response): Promise<void> {
  expect(reply.status).toBe(200);
  await reply.json();
}

const user = "investor-records";

/** Starts a MongoDB with the user of a service, whose password is 0. */
async function startWithUser() {
  const { db, urlOf } = await startWithUsers();
  await db.command({ createUser: user, pwd: "0", roles: ["readWrite"] });
  return { db, urlWith: (password: string, name = user) => urlOf(name, password) };
}

describe("the password of a MongoDB", needsMongo(), () => {
  it("is changed under load without a failed call, once the file has the new one", async () => {
    const { db, urlWith } = await startWithUser();
    const file = temporaryFile(urlWith("0"));
    const { lines, reload, ...service } = await startInProcess({
      "--database-url-file": file,
      // What is promised goes by this, and a busy machine can need more than the ten seconds of a call.
      "--request-timeout": "1m",
    });
    await waitFor(async () => (await ask(service, "/readyz")).ok);
    const clients = Object.values(clientsOf(service));
    let isDone = false;
    let calls = 0;
    const callers = Array.from({ length: 24 }, async (_, i) => {
      const client = clients[i % clients.length];
      while (client !== undefined && !isDone) {
        const { id } = await client.createInvestor(aCreate());
        await client.getInvestor({ id });
        await client.listInvestors({ pageSize: 10 });
        calls += 3;
      }
    });
    const lists: Promise<unknown>[] = [];
    const fetchLists = () => {
      for (let i = 0; i < 20; i += 1) {
        const list = ask(service, "/v1/investors?pageSize=1").then(expectWhole);
        lists.push(list.catch((error) => error));
      }
    };
    const rotate = async (password: number) => {
      await db.command({ updateUser: user, pwd: String(password) });
      // New connections are refused from here on, which more callers need.
      fetchLists();
      await delay(500);
      writeFileSync(file, urlWith(String(password)));
    };
    // The one that is found by a call, and the one that is found by looking at the file.
    await rotate(1);
    await waitFor(() => lines.some(({ msg }) => msg === "reloaded database URL"));
    await rotate(2);
    await waitFor(async () => (await reload(true)).reloaded.includes("database URL"));
    await db.command({ createUser: "second", pwd: "3", roles: ["readWrite"] });
    writeFileSync(file, urlWith("3", "second"));
    expect(await reload(true)).toEqual({ reloaded: ["database URL"], errors: [] });
    const before = calls;
    await waitFor(() => calls > before + 300);
    isDone = true;
    await Promise.all(callers);
    expect((await Promise.all(lists)).filter(Boolean)).toEqual([]);
    expect(lines.filter(({ msg }) => msg === "call failed")).toEqual([]);
  });

  it("and its user, dropped and made again, are said, and over when they are over", async () => {
    const { urlWith, db } = await startWithUser();
    const { lines, ...service } = await startInProcess({ "--database-url": urlWith("0") });
    const { gRPC } = clientsOf(service);
    const isReady = async () => (await ask(service, "/readyz")).ok;
    await waitFor(isReady);
    const { id } = await gRPC.createInvestor(aCreate());
    await db.command({ dropUser: user });
    await waitFor(async () => !(await isReady()));
    for (const call of [gRPC.createInvestor(aCreate()), gRPC.getInvestor({ id })]) {
      expect(await failureOf(call)).toMatchObject({ reason: "STORE_UNAVAILABLE" });
    }
    const cause = expect.stringMatching(/check (the )?user/);
    expect(lines).toContainEqual(expect.objectContaining({ msg: "call failed", cause }));
    await db.command({ createUser: user, pwd: "0", roles: ["readWrite"] });
    await waitFor(isReady);
    expect((await gRPC.getInvestor({ id })).id).toBe(id);
    await gRPC.createInvestor(aCreate());
  });
});
