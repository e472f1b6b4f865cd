import { execFileSync } from "node:child_process";
import {
  closeSync,
  mkdirSync,
  openSync,
  statSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { describe, expect, it, onTestFinished } from "vitest";
import { createSqliteStore } from "../../src/store/sqlite.ts";
import { StoreUnavailableError } from "../../src/store/store.ts";
import { temporaryFolder } from "../support/folder.ts";
import { anInvestor } from "../support/records.ts";
import { describeStoreContract } from "./contract.ts";

async function open(path: string) {
  const fatal: Error[] = [];
  const store = await createSqliteStore({
    path,
    observe() {},
    onFatal: (error) => fatal.push(error),
  });
  onTestFinished(() => store.close());
  return { store, fatal };
}

describeStoreContract("SQLite", async () => {
  const path = join(temporaryFolder(), "investors.db");
  return { open: async () => (await open(path)).store };
});

describe("SQLite", () => {
  it("makes the file and every folder on the way", async () => {
    const path = join(temporaryFolder(), "a", "b", "investors.db");
    const { store } = await open(path);
    await store.insert(anInvestor());
    expect(statSync(path).isFile()).toBe(true);
  });

  it("keeps records as a person can read them", async () => {
    const path = join(temporaryFolder(), "investors.db");
    const { store } = await open(path);
    const record = anInvestor();
    await store.insert(record);
    const [row] = new DatabaseSync(path).prepare("SELECT hex(id) AS id, * FROM investors").all();
    expect(row).toMatchObject({ type: 1, first_name: record.firstName, city: "Łódź" });
  });

  it("refuses a file that is damaged or no database", async () => {
    const path = join(temporaryFolder(), "investors.db");
    writeFileSync(path, "no database at all".repeat(1_000));
    await expect(open(path)).rejects.toThrow(`${path}: it is damaged, or not an SQLite file`);
  });

  it("refuses a file of a newer version", async () => {
    const path = join(temporaryFolder(), "investors.db");
    await (await open(path)).store.close();
    new DatabaseSync(path).exec("PRAGMA user_version = 99");
    await expect(open(path)).rejects.toThrow("written by a newer version");
  });

  it("refuses a file of another program and leaves it as it is", async () => {
    const path = join(temporaryFolder(), "other.db");
    const other = new DatabaseSync(path);
    other.exec("CREATE TABLE investors (name TEXT)");
    await expect(open(path)).rejects.toThrow("belongs to another program");
    expect(other.prepare("SELECT count(*) AS n FROM sqlite_schema").get()).toEqual({ n: 1 });
  });

  it("refuses a folder that it cannot make", async () => {
    const folder = temporaryFolder();
    writeFileSync(join(folder, "file"), "");
    await expect(open(join(folder, "file", "investors.db"))).rejects.toThrow(
      "cannot use the SQLite file",
    );
  });

  it("refuses a path that is a folder", async () => {
    await expect(open(temporaryFolder())).rejects.toThrow("cannot use the SQLite file");
  });

  it("is not ready, and never says that a record is not there, once the file turns out damaged", async () => {
    const path = join(temporaryFolder(), "investors.db");
    const first = await open(path);
    const records = Array.from({ length: 500 }, () => anInvestor());
    await Promise.all(records.map((record) => first.store.insert(record)));
    await first.store.close();
    const { store } = await open(path);
    const file = openSync(path, "r+");
    const { size } = statSync(path);
    writeSync(file, Buffer.alloc(size - 8_192, 0xff), 0, size - 8_192, 8_192);
    closeSync(file);

    const outcomes = await Promise.allSettled(records.map(({ id }) => store.find(id)));
    expect(outcomes.some(({ status }) => status === "rejected")).toBe(true);
    for (const outcome of outcomes) {
      if (outcome.status === "fulfilled") expect(outcome.value).toBeDefined();
      else expect(outcome.reason).not.toBeInstanceOf(StoreUnavailableError);
    }
    await expect(store.ping()).rejects.toThrow();
  });

  it("waits for another process that writes, and says so if it waits too long", async () => {
    const path = join(temporaryFolder(), "investors.db");
    const { store } = await open(path);
    const other = new DatabaseSync(path);
    other.exec("BEGIN IMMEDIATE");
    const short = store.insert(anInvestor());
    setTimeout(() => other.exec("ROLLBACK"), 500);
    await short;

    other.exec("BEGIN IMMEDIATE");
    const record = anInvestor();
    await expect(store.insert(record)).rejects.toThrow(StoreUnavailableError);
    other.exec("ROLLBACK");
    expect(await store.find(record.id)).toBeUndefined();
    await store.insert(record);
  });

  it("keeps its log small while it reads and writes", async () => {
    const path = join(temporaryFolder(), "investors.db");
    const { store } = await open(path);
    for (let round = 0; round < 40; round += 1) {
      const records = Array.from({ length: 500 }, () => anInvestor());
      await Promise.all(records.map((record) => store.insert(record)));
      await store.list({ limit: 1_000 });
    }
    expect(statSync(`${path}-wal`).size).toBeLessThan(16 * 1024 * 1024);
  });

  it("rejects what a full disk cannot take, keeps what it has, and goes on once there is room", async ({
    skip,
  }) => {
    const disk = temporaryDisk(join(temporaryFolder(), "disk"));
    skip(disk === undefined, "this test needs the right to mount a small file system");
    if (disk === undefined) return;
    const ballast = join(disk, "ballast");
    writeFileSync(ballast, Buffer.alloc(512 * 1024));
    const { store, fatal } = await open(join(disk, "investors.db"));

    const stored = [];
    let refusal: unknown;
    while (refusal === undefined && stored.length < 100_000) {
      const records = Array.from({ length: 100 }, () => anInvestor({ lastName: "x".repeat(250) }));
      const outcomes = await Promise.allSettled(records.map((record) => store.insert(record)));
      for (const [i, outcome] of outcomes.entries()) {
        if (outcome.status === "fulfilled") stored.push(records[i]);
        else refusal = outcome.reason;
      }
    }
    expect(refusal).toBeInstanceOf(StoreUnavailableError);
    expect(stored.length).toBeGreaterThan(0);
    for (const record of stored) expect(await store.find(record?.id ?? "")).toBeDefined();
    expect(await store.list({ limit: 100_001 })).toHaveLength(stored.length);

    truncateSync(ballast);
    await store.insert(anInvestor());
    expect(await store.list({ limit: 100_001 })).toHaveLength(stored.length + 1);
    expect(fatal).toEqual([]);
  });
});

/** A file system of 2 MiB in memory, or undefined where none may be mounted. */
function temporaryDisk(folder: string): string | undefined {
  mkdirSync(folder);
  try {
    execFileSync("mount", ["-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], { stdio: "ignore" });
  } catch (error) {
    if (process.env.CI) throw error;
    return undefined;
  }
  onTestFinished(() => {
    execFileSync("umount", ["-l", folder]);
  });
  return folder;
}
