import { spawnSync } from "node:child_process";
import { readdirSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as delay } from "node:timers/promises";
import { v4 } from "uuid";
import { describe, expect, it, onTestFinished } from "vitest";
import {
  copy,
  insertInto,
  makeSqlite,
  removeHere,
  runSql,
  startWriters,
  tableOf,
} from "./support/copying.ts";
import { failureOf } from "./support/errors.ts";
import { temporaryDisk, temporaryFolder } from "./support/folder.ts";
import { connectTo, describeWithMongo, failCommands } from "./support/mongodb.ts";
import { aCreate, anInvestor } from "./support/records.ts";
import {
  end,
  grpcClient,
  lockDatabase,
  run,
  startService,
  untilWritten,
} from "./support/service.ts";
import { needs } from "./support/tools.ts";

const file = "sqlite:data/investors.db";
const repeated = "a retry of its create would store it again\n";

/** Starts `investor-records remove`. */
function start(folder: string, id: string, ...flags: string[]) {
  return run(["remove", file, id, ...flags], {}, folder);
}

/** How it ends in this process. */
const remove = (folder: string, id: string, flags: Parameters<typeof removeHere>[3] = {}) =>
  removeHere(folder, file, id, flags);

const done = (...lines: string[]) => ({ code: 0, told: `${lines.join("\n")}\n${repeated}` });
const failed = (told: string) => ({ code: 1, told: expect.stringMatching(told) });
const mayHoldCopy =
  "free space of the file may still hold a copy: --vacuum rewrites the whole file";
const removed = (id: string) => done(`removed ${id} from ${file}`, mayHoldCopy);
const absent = (id: string) => done(`${file} has no record ${id}`, mayHoldCopy);

const rows = 3_000;

/**
 * Makes a file of which pages that were split have copies of records, in space that is not in use.
 *
 * @returns records of which there are copies
 */
async function makeSplit(folder: string): Promise<string[]> {
  await makeSqlite(folder, "data/investors.db", 0);
  const path = join(folder, "data/investors.db");
  using db = new DatabaseSync(path);
  db.exec(`PRAGMA secure_delete = OFF;
    WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ${rows})
    ${insertInto} SELECT randomblob(16), 1, 'Ada ' || hex(randomblob(8)), '', 'Lovelace',
      '12 St James''s Square', '', 'London', '', 'SW1Y 4JH', 'gb', 'en' FROM n;
    PRAGMA wal_checkpoint(TRUNCATE)`);
  const bytes = readFileSync(path);
  const ids = db.prepare("SELECT lower(hex(id)) AS hex FROM investors").all();
  return ids
    .map(({ hex }) => Buffer.from(String(hex), "hex"))
    .filter((key) => bytes.includes(key, bytes.indexOf(key) + 1))
    .map((key) => key.toString("hex").replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-"));
}

/** Whether the file, its WAL, or anything beside them holds an id, or a text. */
function isOnDisk(folder: string, id: string, text?: string): boolean {
  const data = join(folder, "data");
  const bytes = Buffer.from(id.replaceAll("-", ""), "hex");
  return readdirSync(data)
    .map((name) => readFileSync(join(data, name)))
    .some((content) => content.includes(bytes) || (text && content.includes(text)));
}

describe("a record that is removed from SQLite", () => {
  it("is in no reply, and once the file is rewritten, in neither file nor WAL", async () => {
    const folder = temporaryFolder();
    const victims = (await makeSplit(folder)).slice(0, 5);
    expect(victims).toHaveLength(5);
    const service = await startService({}, folder);
    const writers = startWriters(grpcClient(service));
    for (const id of victims) expect(await remove(folder, id)).toEqual(removed(id));
    const created = await writers.stop();
    const client = grpcClient(service);
    for (const id of victims) {
      expect((await failureOf(client.getInvestor({ id }))).reason).toBe("INVESTOR_NOT_FOUND");
    }
    const [id = ""] = victims;
    expect(await remove(folder, id, { vacuum: true })).toEqual(
      done(`${file} has no record ${id}`, "rewriting the whole file"),
    );
    expect(victims.filter((each) => isOnDisk(folder, each))).toEqual([]);
    expect(tableOf(folder, "data/investors.db").rows).toBe(rows - 5 + created.length);
  });

  it("is in neither file nor WAL where no page was split, also after a reader has ended", async () => {
    const service = await startService();
    const { folder } = service;
    const client = grpcClient(service);
    // So long that the last texts are in pages of their own.
    const long = "x".repeat(256);
    const state = "of this record alone";
    const texts = { lastName: long, addressLine1: long, addressLine2: long, city: long, state };
    const request = aCreate({ ...texts, requestId: v4() });
    const { id } = await client.createInvestor(request);
    const reader = new DatabaseSync(join(folder, "data/investors.db"), { readOnly: true });
    onTestFinished(() => reader.close());
    const removeBesideReader = async (letGo: boolean, ...flags: string[]) => {
      reader.exec("BEGIN; SELECT count(*) FROM investors");
      const running = start(folder, id.toUpperCase(), ...flags);
      await untilWritten(running, "removed");
      // It waits without a lock.
      await client.createInvestor(aCreate());
      if (letGo) reader.exec("ROLLBACK");
      const code = await running.exited;
      if (reader.isTransaction) reader.exec("ROLLBACK");
      return { code, told: running.output() };
    };
    expect(await removeBesideReader(true)).toEqual(removed(id));
    expect(isOnDisk(folder, id, state)).toBe(false);
    await client.createInvestor(request);
    expect(await client.getInvestor({ id })).toMatchObject({ id });
    expect(await removeBesideReader(false, "--wait", "100ms")).toEqual(
      failed(`^removed ${id} from ${file}\nerror: a copy may be left in .* end it and repeat`),
    );
    await end(service, "SIGKILL");
    expect(await remove(folder, id)).toEqual(absent(id));
    expect(isOnDisk(folder, id, state)).toBe(false);
  });

  it("is removed by two commands at once, also beside a copy", async () => {
    const folder = temporaryFolder();
    const [one = "", two = ""] = await makeSplit(folder);
    const commands = [one, two, one].map((id) => start(folder, id, "--wait", "10m"));
    const copied = await copy([file, "out.ndjson"], { folder });
    expect(copied, copied.told).toMatchObject({ code: 0 });
    for (const { exited, output } of commands) expect(await exited, output()).toBe(0);
    expect(tableOf(folder, "data/investors.db").rows).toBe(rows - 2);
  });

  it(
    "is removed by a repeat once its disk can be written and has room",
    needs("mount"),
    async () => {
      const folder = temporaryFolder();
      const disk = temporaryDisk(join(folder, "data"));
      const [id = ""] = await makeSplit(folder);
      spawnSync("mount", ["-o", "remount,ro", disk]);
      expect(await remove(folder, id)).toEqual(failed("^error: cannot remove from [^\n]+\n$"));
      spawnSync("mount", ["-o", "remount,rw", disk]);
      const ballast = join(disk, "ballast");
      const fill = () => void spawnSync("sh", ["-c", `cat /dev/zero > ${ballast}`]);
      fill();
      const full = " .*: its disk is full";
      expect(await remove(folder, id)).toEqual(failed(`error: cannot remove from${full}`));
      rmSync(ballast);
      const onLine = (line: string) => line.includes("rewriting") && fill();
      expect(await remove(folder, id, { vacuum: true, onLine })).toEqual(
        failed(`error: a copy may be left in${full}`),
      );
      rmSync(ballast);
      expect((await remove(folder, id, { vacuum: true })).code).toBe(0);
      expect(tableOf(folder, "data/investors.db").rows).toBe(rows - 1);
      expect(isOnDisk(folder, id)).toBe(false);
    },
  );

  it.each([
    [file, "17", 2, "ID must be a UUID"],
    ["a.ndjson", v4(), 2, "DATABASE must be sqlite:PATH"],
    ["mongodb://me:s3cret@h/?no=1", v4(), 2, "cannot remove from mongodb://h/: not a MongoDB"],
    ["sqlite:gone.db", v4(), 1, "cannot remove from sqlite:gone.db: it does not exist"],
    ["sqlite:other.db", v4(), 1, "it belongs to another program"],
  ])("is in no %j with the id %s: status %i", async (database, id, status, fault) => {
    const folder = temporaryFolder();
    runSql(join(folder, "other.db"), "CREATE TABLE investors (id BLOB PRIMARY KEY)");
    const before = readdirSync(folder);
    const ended = await removeHere(folder, database, id);
    expect(ended).toEqual({ ...failed(`^error: [^\n]*${fault}[^\n]*\n$`), code: status });
    expect(ended.told).not.toContain("s3cret");
    expect(readdirSync(folder)).toEqual(before);
  });

  it("stays while its file is locked", async () => {
    const folder = temporaryFolder();
    const [{ id } = anInvestor()] = await makeSqlite(folder, "data/investors.db", 1);
    const unlock = lockDatabase({ folder });
    expect(await remove(folder, id, { waitMs: 100 })).toEqual(
      failed(`^error: cannot remove from ${file}: another process is using it`),
    );
    // Longer than SQLite waits for the service.
    const running = start(folder, id);
    await delay(6_000);
    unlock();
    expect(await running.exited).toBe(0);
  });
});

describeWithMongo("a record that is removed from MongoDB", "standalone", (mongo) => {
  it("is in no reply and there no second time, and may or may not be removed if no majority confirms it", async () => {
    const url = mongo.url();
    const service = await startService({ DATABASE_URL: url, REQUEST_TIMEOUT: "10m" });
    const client = grpcClient(service);
    const { id } = await client.createInvestor(aCreate());
    const other = await client.createInvestor(aCreate());
    const environment = { MONGODB: url };
    const name = url.replace(/\?.*/, "");
    const removeFromMongo = (id: string) =>
      removeHere(service.folder, "env:MONGODB", id, { environment });
    expect(await removeFromMongo(id)).toEqual(done(`removed ${id} from ${name}`));
    expect((await failureOf(client.getInvestor({ id }))).reason).toBe("INVESTOR_NOT_FOUND");
    expect((await client.listInvestors({})).investors).toEqual([other]);
    expect(await removeFromMongo(id)).toEqual(done(`${name} has no record ${id}`));

    const writeConcernError = { code: 64, errmsg: "waiting for replication timed out" };
    const fail = failCommands(await connectTo(url));
    await fail({ times: 1 }, { writeConcernError }, "delete");
    expect(await removeFromMongo(other.id)).toEqual(
      failed(`^error: ${other.id} may or may not be removed from [^\n]*error 64`),
    );
    expect((await removeFromMongo(other.id)).code).toBe(0);
  });
});
