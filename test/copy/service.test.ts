import { readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { v7 } from "uuid";
import { describe, expect, it } from "vitest";
import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import { temporaryFolder } from "../support/folder.ts";
import { describeWithMongo } from "../support/mongodb.ts";
import { listAll } from "../support/pages.ts";
import { aCreate } from "../support/records.ts";
import { grpcClient, type Service, startService } from "../support/service.ts";
import { copy, makeSqlite, openSqlite } from "./copying.ts";

const callers = 16;

/** Callers of a service that create one record after the other, until they are stopped. */
function startWriters(service: Service) {
  const client = grpcClient(service);
  const acknowledged: Investor[] = [];
  let isOver = false;
  const all = Array.from({ length: callers }, async () => {
    while (!isOver) acknowledged.push(await client.createInvestor(aCreate()));
  });
  return {
    acknowledged,
    /** Rejects if a create has failed. */
    async stop(): Promise<void> {
      isOver = true;
      await Promise.all(all);
    },
  };
}

describe("a service in use", () => {
  it("goes on creating while its records are copied, and none is missing", {
    timeout: 180_000,
  }, async () => {
    const folder = temporaryFolder();
    await makeSqlite(folder, "data/investors.db", 5_000);
    const writers = startWriters(await startService({}, folder));
    const rounds = ["one", "two"];
    for (const round of rounds) {
      const before = writers.acknowledged.map(({ id }) => id);
      const source = "sqlite:data/investors.db";
      expect((await copy([source, `${round}.ndjson`], { folder })).code).toBe(0);
      expect((await copy([source, "sqlite:copy.db"], { folder })).code).toBe(0);
      const lines = readFileSync(join(folder, `${round}.ndjson`), "utf8")
        .trim()
        .split("\n");
      const copied = new Set(lines.map((line) => JSON.parse(line).id));
      expect(before.filter((id) => !copied.has(id))).toEqual([]);
    }
    await writers.stop();
    expect(writers.acknowledged.length).toBeGreaterThan(callers);
  });

  it("goes on creating while records are copied into its file", { timeout: 180_000 }, async () => {
    const folder = temporaryFolder();
    const investors = await makeSqlite(folder, "a.db", 5_000);
    const writers = startWriters(await startService({}, folder));
    for (let round = 0; round < 2; round += 1) {
      const { code, told } = await copy(["sqlite:a.db", "sqlite:data/investors.db"], { folder });
      expect({ code, told }).toMatchObject({ code: 0 });
    }
    await writers.stop();
    const store = await openSqlite(join(folder, "data/investors.db"));
    const all = [...investors, ...writers.acknowledged].map(({ id }) => id);
    const stored = await store.list({ limit: 1_000_000 });
    await store.close();
    expect(stored.map(({ id }) => id)).toEqual(all.toSorted());
  });
});

await describeWithMongo("the move from SQLite to MongoDB", "set of one", (mongo) => {
  it("keeps each record once, with writers at work that send request ids", {
    timeout: 180_000,
  }, async () => {
    const folder = temporaryFolder();
    const env = { DATABASE_URL: mongo.url() };
    const created = new Map<string, Investor>();
    let requests = 0;
    let isOver = false;
    let service = await startService({}, folder);

    /** Creates records, each by repeating it with its request id until it is acknowledged. */
    const writers = Array.from({ length: callers }, async () => {
      while (!isOver) {
        const request = aCreate({ requestId: v7() });
        requests += 1;
        for (;;) {
          const investor = await grpcClient(service)
            .createInvestor(request)
            .catch(() => delay(20));
          if (investor === undefined) continue;
          created.set(investor.id, investor);
          break;
        }
      }
    });
    const move = () => copy(["sqlite:data/investors.db", "env:DATABASE_URL"], { folder, env });

    await delay(500);
    expect((await move()).code).toBe(0);
    service.child.kill("SIGTERM");
    await service.exited;
    const again = await move();
    expect(again.code).toBe(0);
    expect(again.told).not.toContain("copied 0 records");
    service = await startService(env, folder);
    const moved = created.size;
    while (created.size < moved + 2 * callers) await delay(20);
    isOver = true;
    await Promise.all(writers);

    expect(created.size).toBe(requests);
    const stored = await listAll(grpcClient(service));
    expect(stored).toEqual([...created.values()].toSorted((a, b) => (a.id < b.id ? -1 : 1)));
  });
});
