import {
  copyFileSync,
  existsSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { Code } from "@connectrpc/connect";
import { v4 } from "uuid";
import { beforeAll, describe, expect, it } from "vitest";
import { openSqliteFileToRead } from "../src/store/sqlite/file.ts";
import { copyHere, openSqlite, outside, rowsOf } from "./support/copying.ts";
import { sharedFolder, temporaryFolder } from "./support/folder.ts";
import { listAll } from "./support/pages.ts";
import { aCreate, anInvestor } from "./support/records.ts";
import { startInProcess } from "./support/server.ts";
import { ask, end, grpcClient, metric, startService, waitFor } from "./support/service.ts";

const pageSize = 4_096;

/** Files and WALs of two services as a kill would leave them, by name, and the records in each. */
const left = sharedFolder();
const ids: Record<string, string[]> = {};

beforeAll(async () => {
  /** Adds records of which each is anywhere in the table, and keeps what a kill would leave then. */
  async function add(path: string, count: number, name: string, sql = "") {
    const store = await openSqlite(path);
    const records = Array.from({ length: count }, () => anInvestor({ id: v4() }));
    await Promise.all(records.map((record) => store.insert(record)));
    const db = new DatabaseSync(path);
    db.exec(sql);
    for (const suffix of ["", "-wal"]) outside("cp", path + suffix, join(left, name + suffix));
    ids[name] = (await store.list({ limit: 10_000 })).map(({ id }) => id);
    db.close();
    await store.close();
    outside("cp", path, join(left, `${name} stopped`));
    ids[`${name} stopped`] = ids[name];
  }
  const [one, other] = [join(left, "one.db"), join(left, "other.db")];
  // What the WAL has of the first pages is all of them.
  await add(one, 300, "early");
  await add(one, 1, "one more");
  await add(one, 2_000, "late");
  await add(one, 30, "latest", `VACUUM INTO '${join(left, "vacuumed into")}'`);
  await add(one, 30, "checkpointed", "PRAGMA wal_checkpoint(PASSIVE)");
  // What it frees is cut off.
  const fill = "CREATE TABLE t AS SELECT zeroblob(1000000); PRAGMA wal_checkpoint(TRUNCATE)";
  await add(one, 30, "vacuumed", `${fill}; DROP TABLE t; VACUUM`);
  await add(one, 30, "vacuumed and checkpointed", "VACUUM; PRAGMA wal_checkpoint(PASSIVE)");
  await add(other, 200, "other");
});

/** A file and its WAL, each as the name says or missing, in a folder of their own. */
function combine(file: string, log?: string): string {
  const path = join(temporaryFolder(), "investors.db");
  copyFileSync(join(left, file), path);
  if (log !== undefined) copyFileSync(join(left, `${log}-wal`), `${path}-wal`);
  return path;
}

async function expectRefused(path: string, why: string): Promise<void> {
  const read = () =>
    [path, `${path}-wal`].map((name) => (existsSync(name) ? readFileSync(name) : undefined));
  const before = read();
  await expect(openSqlite(path)).rejects.toThrow(why);
  expect(read()).toEqual(before);
}

/** The ids of the records in a file and its WAL. */
async function readIds(path: string): Promise<string[] | undefined> {
  const store = await openSqlite(path);
  const found = await store.list({ limit: 10_000 });
  for (let i = 0; i < found.length; i += 10)
    expect(await store.find(found[i]?.id ?? "")).toEqual(found[i]);
  await store.close();
  return found.map(({ id }) => id);
}

describe("a file and a WAL", () => {
  const apart = "do not belong together";

  it.each([
    ["one more stopped", "latest"],
    ["one more stopped", "early"],
    ["other stopped", "early"],
    ["latest", "other"],
    ["vacuumed into", "latest"],
  ])("are refused as they are if they do not belong together: %s, %s", async (file, log) => {
    const path = combine(file, log);
    await expectRefused(path, apart);
    expect(() => openSqliteFileToRead(path)).toThrow(apart);
    // As the error says.
    for (const suffix of ["-wal", "-shm"]) rmSync(path + suffix);
    const found = await readIds(path);
    if (file.endsWith("stopped")) expect(found).toEqual(ids[file]);
  });

  it.each([
    ["latest", "latest"],
    ["checkpointed", "checkpointed"],
    ["vacuumed", "vacuumed"],
    ["vacuumed and checkpointed", "vacuumed and checkpointed"],
    ["latest", undefined],
  ])("are opened with all that is in them if they do: %s, %s", async (file, log) => {
    expect(await readIds(combine(file, log))).toEqual(ids[log ?? "late"]);
  });

  it("are opened with all that is in them after a kill amid the checkpoint that lengthens the file", async () => {
    const path = combine("late", "late");
    const first = readFileSync(join(left, "late stopped")).subarray(0, pageSize);
    writeFileSync(path, Buffer.concat([first, readFileSync(path).subarray(pageSize)]));
    expect(await readIds(path)).toEqual(ids.late);
  });

  it("are refused if the file was cut short", async () => {
    const path = combine("latest");
    truncateSync(path, 40 * pageSize);
    await expectRefused(path, "it is damaged");
    const other = combine("late stopped");
    truncateSync(other, statSync(other).size - 100);
    await expectRefused(other, "its end is missing");
  });

  it.each([
    ["latest", "late", -1_000],
    ["checkpointed", "checkpointed", 20],
    ["checkpointed", "checkpointed", 9_000],
  ])("are opened up to a flipped bit in the WAL, or refused: %s", async (name, least, position) => {
    const path = combine(name, name);
    const log = readFileSync(`${path}-wal`);
    const byte = log.subarray(position);
    byte.writeUInt8(byte.readUInt8() ^ 1);
    writeFileSync(`${path}-wal`, log);
    const found = await readIds(path).catch((error) => void expect(String(error)).toContain(apart));
    expect(found ?? ids[least]).toEqual(expect.arrayContaining(ids[least] ?? []));
  });
});

it("a service whose file was moved ends, and does not touch the file that has its path now", async () => {
  const folder = temporaryFolder();
  const env = { DATABASE_URL: "sqlite:investors.db" };
  const old = await startService(env, folder);
  for (const suffix of ["", "-wal", "-shm"]) {
    renameSync(`${folder}/investors.db${suffix}`, `${folder}/moved.db${suffix}`);
  }
  const service = await startService(env, folder);
  const client = grpcClient(service);
  await client.createInvestor(aCreate());
  const code = await old.exited;
  expect(code).toBe(3);
  // A supervisor's start would serve what has the path now, or a new file.
  const unit = readFileSync("deploy/investor-records.service", "utf8");
  expect(/^RestartPreventExitStatus=(.*)$/m.exec(unit)?.[1]?.split(" ")).toContain(String(code));
  expect(old.output()).toMatch(/"level":60.*was moved, deleted or replaced/);
  for (let i = 0; i < 100; i += 1) await client.createInvestor(aCreate());
  await end(service, "SIGKILL");
  expect(await readIds(`${folder}/investors.db`)).toHaveLength(101);
});

describe("a damaged page", () => {
  /** A file of which a page of the table is changed, three quarters from its beginning. */
  function change(edit: (page: Buffer) => void): string {
    const path = combine("late stopped");
    const db = new DatabaseSync(path);
    const inTable = "name = 'investors' AND pagetype = 'leaf'";
    const leaves = db.prepare(`SELECT pageno FROM dbstat WHERE ${inTable} ORDER BY path`).all();
    db.close();
    const number = Number(leaves[Math.floor(leaves.length * 0.75)]?.pageno);
    const bytes = readFileSync(path);
    edit(bytes.subarray((number - 1) * pageSize, number * pageSize));
    writeFileSync(path, bytes);
    return path;
  }

  const serve = (path: string) => startInProcess({ "--database-url": `sqlite:${path}` });

  it("fails only the calls that touch it, and the service stays ready", async () => {
    const service = await serve(change((page) => page.fill(0xff)));
    const client = grpcClient(service);
    // At least one of each page, and creates that are stored right after these.
    const some = (ids.late ?? []).filter((_, i) => i % 10 === 0);
    const creates = some.map((id) =>
      aCreate({ requestId: `${id.slice(0, 14)}7${v4().slice(15)}` }),
    );
    const codeOf = (call: Promise<unknown>) =>
      call.then(() => "ok").catch(({ code }) => String(Code[code]));
    const gets = some.map((id) => codeOf(client.getInvestor({ id })));
    for (const calls of [gets, creates.map((each) => codeOf(client.createInvestor(each)))]) {
      const codes = await Promise.all(calls);
      const failed = codes.filter((code) => code !== "ok");
      expect(new Set(failed)).toEqual(new Set(["Internal"]));
      expect(failed.length).toBeLessThan(100);
    }
    const name = "investor_records_store_operation_duration_seconds_count";
    const checks = () => metric(service, name, '{operation="check"}');
    const before = await checks();
    await waitFor(async () => (await checks()) > before + 1);
    expect(await metric(service, "investor_records_ready")).toBe(1);
    expect(JSON.stringify(service.lines)).not.toContain("not ready");
  });

  it.each<[string, (page: Buffer) => void]>([
    ["holds other bytes", (page) => page.fill(0xff)],
    // Exchanges the first two and the next two, as a WAL of another file would: what ends between
    // two of them does not show that they are out of order.
    ["has its records out of order", (page) => page.subarray(8, 16).swap32().swap16()],
  ])("that %s fails lists and copies that meet it, and makes none endless", async (_, edit) => {
    const path = change(edit);
    const damage = expect.stringMatching(/damaged after the id [0-9a-f-]{36}/);
    const service = await serve(path);
    const pages = () => listAll(grpcClient(service));
    const whole = async () => (await ask(service, "/v1/investors")).text();
    for (const list of [pages, whole]) {
      service.errors.length = 0;
      await expect(list()).rejects.toThrow();
      await waitFor(() => service.errors.length > 1);
      const [fault, call] = service.errors;
      const { traceId } = call ?? {};
      expect(fault).toMatchObject({ msg: "internal error", traceId, err: { message: damage } });
      expect(call).toMatchObject({ msg: "call failed", code: "INTERNAL" });
    }
    const folder = temporaryFolder();
    for (const to of ["sqlite:copy.db", "copy.ndjson"]) {
      const ended = await copyHere([`sqlite:${path}`, to], { folder });
      expect(ended).toEqual({ code: 1, told: damage });
      // It would stop at the same record.
      expect(ended.told).not.toContain("goes on from there");
    }
  });

  it("that has lost a record ends a copy with 1, after what can be read", async () => {
    const path = change((page) => page.writeUInt16BE(page.readUInt16BE(3) - 1, 3));
    const folder = temporaryFolder();
    const why = `it is damaged: [^;]+ page \\d+; "sqlite3 FILE 'PRAGMA quick_check'" shows all`;
    for (const [to, rest] of [
      [undefined, "read 2,300 records"],
      ["out.ndjson", "out.ndjson was not made"],
      ["sqlite:copy.db", "copied 2,300 records"],
    ] as const) {
      expect(await copyHere([`sqlite:${path}`, to], { folder })).toEqual({
        code: 1,
        told: expect.stringMatching(`^error: cannot read sqlite:${path}: ${why}; ${rest}`),
      });
    }
    expect(existsSync(join(folder, "out.ndjson"))).toBe(false);
    expect(rowsOf(folder, "copy.db")).toBe(2_300);
  });
});
