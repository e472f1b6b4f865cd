import { execFileSync } from "node:child_process";
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { Code, ConnectError } from "@connectrpc/connect";
import { v4 } from "uuid";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { Investor } from "../gen/investor/v1/investor_pb.js";
import { copy, openSqlite } from "./support/copying.ts";
import { failureOf } from "./support/errors.ts";
import { temporaryDisk, temporaryFolder } from "./support/folder.ts";
import { listAll, pagesOf } from "./support/pages.ts";
import { aCreate, anInvestor } from "./support/records.ts";
import { grpcClient, run, type Service, startService } from "./support/service.ts";

const pageSize = 4_096;

/** Files and logs of two services as a kill would leave them, by name, and the records in each. */
const left = mkdtempSync(join(tmpdir(), "investor-records-"));
const ids: Record<string, string[]> = {};
afterAll(() => rmSync(left, { recursive: true }));

/** In a process of its own: closing a file here would drop the locks that a store has on it. */
const outside = (program: string, ...args: string[]) =>
  execFileSync(program, args, { stdio: "ignore" });

beforeAll(async () => {
  /** Adds records of which each is anywhere in the table, and returns the ids of all that it has. */
  async function add(path: string, count: number, name: string, sql = "") {
    const store = await openSqlite(path);
    const records = Array.from({ length: count }, () => anInvestor({ id: v4() }));
    await Promise.all(records.map((record) => store.insert(record)));
    const script = `new (require("node:sqlite").DatabaseSync)(process.argv[1]).exec("${sql}")`;
    outside(process.execPath, "-e", script, path);
    for (const suffix of ["", "-wal"]) outside("cp", path + suffix, join(left, name + suffix));
    ids[name] = (await store.list({ limit: 10_000 })).map(({ id }) => id);
    await store.close();
    outside("cp", path, join(left, `${name} stopped`));
    ids[`${name} stopped`] = ids[name];
  }
  const [one, other] = [join(left, "one.db"), join(left, "other.db")];
  // What the log has of the first pages is all of them.
  await add(one, 300, "early");
  await add(one, 1, "one more");
  await add(one, 2_000, "late");
  await add(one, 30, "latest");
  await add(one, 30, "checkpointed", "PRAGMA wal_checkpoint(PASSIVE)");
  // What it frees is cut off.
  const fill = "CREATE TABLE t AS SELECT zeroblob(1000000); PRAGMA wal_checkpoint(TRUNCATE)";
  await add(one, 30, "vacuumed", `${fill}; DROP TABLE t; VACUUM`);
  await add(other, 200, "other");
});

/** A folder for a service whose file and log are those of the names; with none, they are missing. */
function combine(file: string | undefined, log: string | undefined): string {
  const folder = temporaryFolder();
  mkdirSync(join(folder, "data"));
  if (file !== undefined) copyFileSync(join(left, file), fileIn(folder));
  if (log !== undefined) copyFileSync(join(left, `${log}-wal`), logIn(folder));
  return folder;
}

const fileIn = (folder: string) => join(folder, "data/investors.db");
const logIn = (folder: string) => `${fileIn(folder)}-wal`;
const read = (path: string) => (existsSync(path) ? readFileSync(path) : undefined);

function flipBit(path: string, position: number): void {
  const bytes = readFileSync(path);
  bytes[position] = (bytes[position] ?? 0) ^ 1;
  writeFileSync(path, bytes);
}

async function expectRefused(folder: string, why: string): Promise<void> {
  const before = [fileIn(folder), logIn(folder)].map(read);
  const { exited, output } = run([], { GRPC_PORT: "0", HTTP_PORT: "0" }, folder);
  expect(await exited, output()).toBe(1);
  expect(output()).toContain(why);
  expect(output().trim().split("\n")).toHaveLength(1);
  expect([fileIn(folder), logIn(folder)].map(read)).toEqual(before);
}

async function listIds({ httpPort }: Service): Promise<string[]> {
  const reply = await fetch(`http://127.0.0.1:${httpPort}/v1/investors`);
  return ((await reply.json()) as Investor[]).map(({ id }) => id);
}

async function expectServed(folder: string, expected: string[] = []): Promise<void> {
  const service = await startService({}, folder);
  expect(await listIds(service)).toEqual(expected);
  const client = grpcClient(service);
  const found = await Promise.all(expected.map((id) => client.getInvestor({ id })));
  expect(found.map(({ id }) => id)).toEqual(expected);
}

describe("a start beside a log", () => {
  const apart = "do not belong together";

  it.each([
    ["an older file under a newer log", "one more stopped", "latest"],
    ["a file that has one record more, under an older log", "one more stopped", "early"],
    ["the file of another service", "other stopped", "early"],
    ["a file that was killed, and the log of another service", "latest", "other"],
  ])("refuses it as it is: %s", async (_, file, log) => {
    const folder = combine(file, log);
    await expectRefused(folder, apart);
    const { code, told } = await copy(["sqlite:data/investors.db", "x.ndjson"], { folder });
    expect(told).toContain(apart);
    expect(code).toBe(1);
    // As the error says.
    for (const suffix of ["-wal", "-shm"]) rmSync(fileIn(folder) + suffix);
    const service = await startService({}, folder);
    if (file.endsWith("stopped")) expect(await listIds(service)).toEqual(ids[file]);
  });

  it("refuses a file that was cut short", async () => {
    const folder = combine("latest", "latest");
    truncateSync(fileIn(folder), 40 * pageSize);
    await expectRefused(folder, apart);
    rmSync(logIn(folder));
    await expectRefused(folder, "it is damaged");
    const other = combine("late stopped", undefined);
    truncateSync(fileIn(other), statSync(fileIn(other)).size - 100);
    await expectRefused(other, "its end is missing");
  });

  it.each([
    ["what follows a flipped bit", (log: string) => flipBit(log, statSync(log).size - 1_000)],
    ["a log of zeros", (log: string) => writeFileSync(log, Buffer.alloc(statSync(log).size))],
  ])("ignores %s, and warns", async (_, damage) => {
    const folder = combine("latest", "latest");
    damage(logIn(folder));
    const { code, told } = await copy(["sqlite:data/investors.db", "x.ndjson"], { folder });
    expect(told).toMatch(/warning: .*-wal is damaged/);
    expect(code).toBe(0);
    const service = await startService({}, folder);
    expect(await listIds(service)).toEqual(expect.arrayContaining(ids.late ?? []));
    expect(service.output()).toMatch(/"level":40.*-wal is damaged/);
  });

  it("serves all, or refuses, if a bit was flipped after a checkpoint", async () => {
    const { size } = statSync(join(left, "checkpointed-wal"));
    for (const part of [0, 0.4, 0.8]) {
      const folder = combine("checkpointed", "checkpointed");
      flipBit(logIn(folder), 40 + Math.floor(part * size));
      const service = await startService({}, folder).catch((error) => {
        expect(String(error)).toContain(apart);
      });
      if (service) expect(await listIds(service)).toEqual(ids.checkpointed);
    }
  });

  it.each([
    ["that belongs to the file", "latest", "latest", "latest"],
    ["that cuts the file, as VACUUM does", "vacuumed", "vacuumed", "vacuumed"],
    ["that was brought in", "checkpointed", "checkpointed", "checkpointed"],
    ["that is missing after a kill", "latest", undefined, "late"],
  ])("serves all of it: %s", async (_, file, log, expected) => {
    await expectServed(combine(file, log), ids[expected]);
  });

  it("refuses a folder that cannot be written", async ({ skip }) => {
    const disk = temporaryDisk(join(temporaryFolder(), "data"));
    skip(disk === undefined, "this test needs the right to mount a small file system");
    if (disk === undefined) return;
    const folder = join(disk, "..");
    for (const suffix of ["", "-wal"])
      copyFileSync(join(left, `early${suffix}`), fileIn(folder) + suffix);
    outside("mount", "-o", "remount,ro", disk);
    await expectRefused(folder, "must be able to read and write it and its folder");
  });

  it("warns that it has not read through a file above 4 GiB", async () => {
    const folder = combine("late stopped", undefined);
    const size = 5 * 1024 ** 3;
    const bytes = readFileSync(fileIn(folder));
    // The size in pages; nothing is on the disk of those that are added.
    bytes.writeUInt32BE(size / pageSize, 28);
    writeFileSync(fileIn(folder), bytes);
    truncateSync(fileIn(folder), size);
    const service = await startService({}, folder);
    const { id } = await grpcClient(service).createInvestor(aCreate());
    service.child.kill("SIGKILL");
    await service.exited;
    const again = await startService({}, folder);
    expect(again.output()).toMatch(/"level":40.*was not read through/);
    expect((await grpcClient(again).getInvestor({ id })).id).toBe(id);
  });
});

it("a service whose file was moved ends, and leaves the one that has its path now alone", async () => {
  const folder = temporaryFolder();
  const env = { DATABASE_URL: "sqlite:investors.db" };
  const old = await startService(env, folder);
  renameSync(`${folder}/investors.db`, `${folder}/moved.db`);
  const service = await startService(env, folder);
  const client = grpcClient(service);
  for (let i = 0; i < 100; i += 1) await client.createInvestor(aCreate());
  expect(await old.exited).toBe(1);
  expect(old.output()).toMatch(/"level":60.*was moved, deleted or replaced/);
  for (let i = 0; i < 100; i += 1) await client.createInvestor(aCreate());
  service.child.kill("SIGKILL");
  await service.exited;
  const again = grpcClient(await startService(env, folder));
  expect((await again.listInvestors({ pageSize: 1_000 })).investors).toHaveLength(200);
});

describe("a service with a damaged page", () => {
  /** Changes a page of the table, three quarters from its beginning. */
  function change(folder: string, edit: (page: Buffer) => void): void {
    const db = new DatabaseSync(fileIn(folder));
    const leaves = db
      .prepare(
        "SELECT pageno FROM dbstat WHERE name = 'investors' AND pagetype = 'leaf' ORDER BY path",
      )
      .all();
    db.close();
    const number = Number(leaves[Math.floor(leaves.length * 0.75)]?.pageno);
    const bytes = readFileSync(fileIn(folder));
    edit(bytes.subarray((number - 1) * pageSize, number * pageSize));
    writeFileSync(fileIn(folder), bytes);
  }

  const damage = (folder: string) => change(folder, (page) => page.fill(0xff));

  it("fails only the calls that touch it, and stays ready", async () => {
    const folder = combine("late stopped", undefined);
    damage(folder);
    const service = await startService({}, folder);
    const client = grpcClient(service);
    const readiness = async () =>
      (await fetch(`http://127.0.0.1:${service.httpPort}/readyz`)).status;

    /** Which of many calls meet the damage. */
    async function failing(calls: Promise<unknown>[]): Promise<number[]> {
      const failed: number[] = [];
      for (const [i, outcome] of (await Promise.allSettled(calls)).entries()) {
        if (outcome.status === "fulfilled") continue;
        expect(ConnectError.from(outcome.reason).code).toBe(Code.Internal);
        failed.push(i);
      }
      expect(failed.length).toBeGreaterThan(0);
      expect(failed.length).toBeLessThan(100);
      return failed;
    }
    const all = ids.late ?? [];
    const [first = 0] = await failing(all.map((id) => client.getInvestor({ id })));
    const createAndGet = async () => {
      const { id } = await client.createInvestor(aCreate({ requestId: v4() }));
      await client.getInvestor({ id });
    };
    await failing(Array.from({ length: 1_000 }, createAndGet));

    let last = "";
    const walk = (async () => {
      for await (const { investors } of pagesOf(client, 10)) last = investors.at(-1)?.id ?? last;
    })();
    expect((await failureOf(walk)).reason).toBe("INTERNAL");
    expect(last < (all[first] ?? "")).toBe(true);
    const line = `"level":50.*the database is damaged after the id ${last}.*internal error`;
    await expect.poll(service.output).toMatch(new RegExp(line));
    await expect(listIds(service)).rejects.toThrow();
    expect(await readiness()).toBe(200);
    await new Promise((done) => setTimeout(done, 1_500));
    expect(await readiness()).toBe(200);
    expect(service.output()).not.toContain("not ready");
  });

  it("does not make lists and copies endless, but fails them", async () => {
    const folder = combine("late stopped", undefined);
    // Exchanges the first two records, as a log of another file would.
    change(folder, (page) => page.subarray(8, 12).swap32().swap16());

    const service = await startService({}, folder);
    const walk = listAll(grpcClient(service), 50);
    expect((await failureOf(walk)).reason).toBe("INTERNAL");
    await expect(listIds(service)).rejects.toThrow();
    await expect.poll(service.output).toContain("the database is damaged after the id");
    for (const to of ["sqlite:copy.db", "copy.ndjson"]) {
      const { code, told } = await copy(["sqlite:data/investors.db", to], { folder });
      expect(code).toBe(1);
      expect(told).toMatch(
        /cannot read sqlite:data\/investors.db: .*damaged after the id [0-9a-f-]{36}/,
      );
    }
  });

  it("is copied up to there, and the copy says where", async () => {
    const folder = combine("late stopped", undefined);
    damage(folder);
    const { code, told } = await copy(["sqlite:data/investors.db", "sqlite:copy.db"], { folder });
    expect(code).toBe(1);
    expect(told).toMatch(/damaged after the id [0-9a-f-]{36}: .*; copied \d/);
  });
});
