import { spawnSync } from "node:child_process";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { v4 } from "uuid";
import { describe, expect, it, onTestFinished } from "vitest";
import type { Investor } from "../gen/investor/v1/investor_pb.js";
import { makeSqlite, openSqlite, startWriters, tableOf } from "./support/copying.ts";
import { failureOf } from "./support/errors.ts";
import { temporaryDisk, temporaryFolder } from "./support/folder.ts";
import { describeWithMongo } from "./support/mongodb.ts";
import { listAll } from "./support/pages.ts";
import { aCreate, anInvestor } from "./support/records.ts";
import { grpcClient, lockDatabase, run, startService } from "./support/service.ts";

/** Runs `investor-records remove` to its end. */
async function remove(folder: string, database: string, id: string, env: NodeJS.ProcessEnv = {}) {
  const { exited, output } = run(["remove", database, id], env, folder);
  return { code: await exited, told: output() };
}

const removed = (id: string, name: string) => ({
  code: 0,
  told: `removed ${id} from ${name}; a repeat of its create would store it again\n`,
});

const file = "sqlite:data/investors.db";

describe("a record that is removed from SQLite", () => {
  it("is in no reply, and nothing of it is in the file and its log", async () => {
    const folder = temporaryFolder();
    const records = await fillAtRandom(join(folder, "data/investors.db"), 3_000);
    const data = join(folder, "data");
    const onDisk = () =>
      readdirSync(data)
        .map((name) => readFileSync(join(data, name), "latin1"))
        .join();
    // Pages that were split have copies of records that are not in use.
    const before = onDisk();
    const copied = records.filter(({ firstName }) => before.split(firstName).length > 2);
    const victims = copied.slice(0, 5);
    expect(victims).toHaveLength(5);
    const service = await startService({}, folder);
    const writers = startWriters(service);
    for (const { id } of victims) expect(await remove(folder, file, id)).toEqual(removed(id, file));
    const created = await writers.stop();
    const client = grpcClient(service);
    for (const { id } of victims) {
      expect((await failureOf(client.getInvestor({ id }))).reason).toBe("INVESTOR_NOT_FOUND");
    }
    const after = onDisk();
    for (const { firstName } of victims) expect(after).not.toContain(firstName);
    expect(tableOf(folder, "data/investors.db").rows).toBe(3_000 - 5 + created.length);
    for (const { firstName } of created) expect(after).toContain(firstName);
  });

  it("stays removed if a reader keeps the log, also after a kill, and a repeat finishes it", {
    timeout: 60_000,
  }, async () => {
    const folder = temporaryFolder();
    const records = await fillAtRandom(join(folder, "data/investors.db"), 3_000);
    const [first = "", second = "", ...others] = records.map(({ id }) => id);
    const service = await startService({}, folder);
    const reader = new DatabaseSync(join(folder, "data/investors.db"), { readOnly: true });
    onTestFinished(() => reader.close());
    const read = () => reader.exec("BEGIN; SELECT count(*) FROM investors");
    const kept = { code: 1, told: expect.stringContaining("repeat the command") };
    read();
    expect(await remove(folder, file, first)).toEqual(kept);
    service.child.kill("SIGKILL");
    await service.exited;
    reader.exec("ROLLBACK");
    const client = grpcClient(await startService({}, folder));
    expect((await listAll(client)).map(({ id }) => id)).toEqual([second, ...others].sort());
    read();
    expect(await remove(folder, file, second)).toEqual(kept);
    reader.exec("ROLLBACK");
    expect(await remove(folder, file, second)).toEqual(removed(second, file));
    expect(await remove(folder, file, second)).toMatchObject({ code: 1 });
  });

  it("is stored again by a repeat of its create, and is there no second time", async () => {
    const service = await startService();
    const client = grpcClient(service);
    const request = aCreate({ requestId: v4() });
    const { id } = await client.createInvestor(request);
    expect(await remove(service.folder, file, id.toUpperCase())).toEqual(removed(id, file));
    expect(await remove(service.folder, file, id)).toEqual({
      code: 1,
      told: `error: ${file} has no record ${id}\n`,
    });
    expect((await client.createInvestor(request)).id).toBe(id);
  });

  it.each([
    [file, "17", 2, "ID must be a UUID"],
    ["a.ndjson", v4(), 2, "DATABASE must be sqlite:PATH"],
    ["mongodb://me:s3cret@h/?no=1", v4(), 2, "cannot remove from mongodb://h/: not a MongoDB"],
    ["env:NOWHERE", v4(), 2, "DATABASE: the environment variable NOWHERE is not set"],
    ["sqlite:gone.db", v4(), 1, "cannot remove from sqlite:gone.db: it does not exist"],
    ["sqlite:garbage.db", v4(), 1, "it is damaged, or not an SQLite file"],
    ["sqlite:other.db", v4(), 1, "it belongs to another program"],
  ])("is in no %j with the id %s: status %i", async (database, id, status, fault) => {
    const folder = temporaryFolder();
    writeFileSync(join(folder, "garbage.db"), "x".repeat(10_000));
    const db = new DatabaseSync(join(folder, "other.db"));
    db.exec("CREATE TABLE investors (id BLOB PRIMARY KEY)");
    db.close();
    const before = readdirSync(folder);
    const { code, told } = await remove(folder, database, id);
    expect(told).toMatch(/^error: [^\n]+\n$/);
    expect(told).toContain(fault);
    expect(told).not.toContain("s3cret");
    expect(code).toBe(status);
    expect(readdirSync(folder)).toEqual(before);
  });

  it("stays while its file is locked or may not be written", { timeout: 60_000 }, async ({
    skip,
  }) => {
    const folder = temporaryFolder();
    const disk = temporaryDisk(join(folder, "data"));
    const [investor] = await makeSqlite(folder, "data/investors.db", 1);
    const id = investor?.id ?? "";
    const unlock = lockDatabase({ folder });
    expect(await remove(folder, file, id)).toMatchObject({ code: 1 });
    unlock();
    if (disk === undefined) return skip("this test needs the right to mount a small file system");
    spawnSync("mount", ["-o", "remount,ro", disk]);
    expect(await remove(folder, file, id)).toMatchObject({
      code: 1,
      told: expect.stringMatching(/^error: cannot remove from [^\n]+\n$/),
    });
    spawnSync("mount", ["-o", "remount,rw", disk]);
    expect(await remove(folder, file, id)).toEqual(removed(id, file));
  });
});

await describeWithMongo("a record that is removed from MongoDB", "set of three", (mongo) => {
  it("is in no reply, and is there no second time", async () => {
    const url = mongo.url();
    const service = await startService({ DATABASE_URL: url });
    const client = grpcClient(service);
    const [{ id }, other] = [
      await client.createInvestor(aCreate()),
      await client.createInvestor(aCreate()),
    ];
    const env = { MONGODB: url };
    const name = url.replace(/\?.*/, "");
    expect(await remove(service.folder, "env:MONGODB", id, env)).toEqual(removed(id, name));
    expect((await failureOf(client.getInvestor({ id }))).reason).toBe("INVESTOR_NOT_FOUND");
    expect((await client.listInvestors({})).investors).toEqual([other]);
    expect(await remove(service.folder, "env:MONGODB", id, env)).toEqual({
      code: 1,
      told: `error: ${name} has no record ${id}\n`,
    });
  });
});

/** Fills a file with records whose ids are in no order, so that its pages are split. */
async function fillAtRandom(path: string, count: number): Promise<Investor[]> {
  const store = await openSqlite(path);
  const records = Array.from({ length: count }, () => anInvestor({ id: v4() }));
  for (let i = 0; i < count; i += 50) {
    await Promise.all(records.slice(i, i + 50).map((record) => store.insert(record)));
  }
  await store.close();
  return records;
}
