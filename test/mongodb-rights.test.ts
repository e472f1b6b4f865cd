import { readFileSync } from "node:fs";
import { runInNewContext } from "node:vm";
import { MongoServerError } from "mongodb";
import { v7 } from "uuid";
import { expect, it } from "vitest";
import { failureOf } from "./support/errors.ts";
import { connectTo, needsMongo, startWithUsers } from "./support/mongodb.ts";
import { aCreate } from "./support/records.ts";
import { ask, end, grpcClient, startService, waitFor } from "./support/service.ts";

const manual = readFileSync(new URL("../docs/data.md", import.meta.url), "utf8");
const [, role = ""] = /db\.createRole\((\{.*?\})\)/s.exec(manual) ?? [];

it("the service needs no more rights than docs/data.md names", needsMongo(), async () => {
  const { db, urlOf } = await startWithUsers();
  const { role: createRole, ...rights } = runInNewContext(`(${role})`);
  await db.command({ createRole, ...rights });
  const user = { createUser: "investor-records", pwd: "secret", roles: [createRole] };
  await db.command(user);
  const url = urlOf("investor-records");

  const service = await startService({ DATABASE_URL: url, REQUEST_TIMEOUT: "10m" });
  await waitFor(async () => (await ask(service, "/readyz")).ok);
  const client = grpcClient(service);
  const request = aCreate({ requestId: v7() });
  const record = await client.createInvestor(request);
  expect(await client.createInvestor(request)).toEqual(record);
  expect(await client.getInvestor({ id: record.id })).toEqual(record);
  expect(await failureOf(client.getInvestor({ id: v7() }))).toMatchObject({
    reason: "INVESTOR_NOT_FOUND",
  });
  expect((await client.listInvestors({})).investors).toEqual([record]);
  expect(await end(service)).toBe(0);
  expect(service.output()).not.toMatch(/"level":[456]0.*(authoriz|privilege)/);

  const own = await connectTo(url);
  const removal = own.db().collection("investors").deleteMany({});
  await expect(removal).rejects.toBeInstanceOf(MongoServerError);
});
