import {
  chmodSync,
  existsSync,
  linkSync,
  mkdirSync,
  readFileSync,
  renameSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setImmediate as nextTurn } from "node:timers/promises";
import { v4 } from "uuid";
import { describe, expect, it, onTestFinished } from "vitest";
import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import { rewriteWal } from "../../src/store/sqlite/checkpoint.ts";
import { pragma } from "../../src/store/sqlite/commit-count.ts";
import {
  checkIdentity,
  openSqliteFile,
  openSqliteFileToRead,
} from "../../src/store/sqlite/file.ts";
import { createSqliteStore } from "../../src/store/sqlite/sqlite.ts";
import {
  DuplicateIdError,
  FilesGoneError,
  RecordRefusedError,
  StoreUnavailableError,
} from "../../src/store/store.ts";
import {
  copyHere,
  insertInto,
  makeSqlite,
  olderTable,
  outside,
  runSql,
  tableAlone,
} from "../support/copying.ts";
import { temporaryDisk, temporaryFolder } from "../support/folder.ts";
import { anInvestor, largest } from "../support/records.ts";
import { needs } from "../support/tools.ts";
import { describeStoreContract } from "./contract.ts";

/** Opens a store until the end of the test, and notes what it reports. */
async function open(path = join(temporaryFolder(), "investors.db")) {
  const fatal: Error[] = [];
  const warnings: string[] = [];
  const outcomes: (Error | undefined)[] = [];
  const batchSizes: (number | undefined)[] = [];
  const store = await createSqliteStore(path, {
    observe: (_, __, size) => batchSizes.push(size),
    onWarning: (message) => warnings.push(message),
    onFatal: (error) => fatal.push(error),
    onWritable: (refusal) => outcomes.push(refusal),
  });
  // Rejects beside others.
  onTestFinished(() => store.close().catch(() => {}));
  return { path, folder: dirname(path), store, fatal, warnings, outcomes, batchSizes };
}

/** Opens a store on what a kill now would leave of a file. */
async function openCopy(path: string) {
  const copy = join(temporaryFolder(), "copy.db");
  for (const suffix of ["", "-wal"]) outside("cp", path + suffix, copy + suffix);
  return (await open(copy)).store;
}

/** Makes a file without records, and closes it. */
async function makeFile(): Promise<string> {
  const folder = temporaryFolder();
  await makeSqlite(folder, "investors.db", 0);
  return join(folder, "investors.db");
}

/** The count of commits in a file and its WAL. */
function countIn(path: string): number {
  using db = new DatabaseSync(path);
  return pragma(db, "user_version");
}

const modeOf = (path: string) => statSync(path).mode & 0o777;

describeStoreContract("SQLite", () => {
  const path = join(temporaryFolder(), "investors.db");
  return async () => (await open(path)).store;
});

const keep = "ALTER TABLE investors RENAME TO kept";

describe("SQLite", () => {
  it("makes the file and every folder on the way, for its owner alone", async () => {
    const folder = temporaryFolder();
    const path = join(folder, "a", "b", "investors.db");
    const { store, warnings } = await open(path);
    await store.insert(anInvestor());
    for (const suffix of ["", "-wal", "-shm"]) expect(modeOf(path + suffix)).toBe(0o600);
    for (const made of ["a", "a/b"]) expect(modeOf(join(folder, made))).toBe(0o700);
    expect(warnings).toEqual([]);
  });

  it("warns of a file that others may read, and leaves it as it is", async () => {
    const path = await makeFile();
    expect(existsSync(`${path}-wal`)).toBe(false);
    chmodSync(path, 0o640);
    const { warnings } = await open(path);
    expect(warnings).toEqual([expect.stringContaining(path)]);
    expect(modeOf(path)).toBe(0o640);
  });

  it.each(["that is there", "that is not there yet"])(
    "follows symbolic links to a file %s",
    async (there) => {
      const folder = temporaryFolder();
      symlinkSync("else/where.db", join(folder, "investors.db"));
      symlinkSync("where", join(folder, "else"));
      mkdirSync(join(folder, "where"));
      const target = join(folder, "where/where.db");
      if (there === "that is there") await (await open(target)).store.close();
      const { store, fatal } = await open(join(folder, "investors.db"));
      await store.insert(anInvestor());
      await store.ping();
      expect(fatal).toEqual([]);
      expect(modeOf(target)).toBe(0o600);
      expect(existsSync(`${target}-wal`)).toBe(true);
    },
  );

  it("keeps its locks, so that no other process deletes the WAL", async () => {
    const path = join(temporaryFolder(), "investors.db");
    for (let i = 0; i < 2; i += 1) {
      const { store } = await open(path);
      await store.insert(anInvestor());
      await store.ping();
      const { ino } = statSync(`${path}-wal`);
      const script = `const db = new (require("node:sqlite").DatabaseSync)(process.argv[1]);
        db.prepare("SELECT count(*) FROM investors").get();
        db.close();`;
      outside(process.execPath, "-e", script, path);
      expect(statSync(`${path}-wal`).ino).toBe(ino);
      await store.insert(anInvestor());
    }
  });

  it("brings its WAL into the file before it is open", async () => {
    const { path, folder, store } = await open();
    for (const record of [anInvestor(), anInvestor()]) await store.insert(record);
    expect((await open(path)).warnings).toEqual([]);
    expect(tableAlone(folder, "investors.db").rows).toBe(2);
  });

  it("is whole without its WAL once it is closed, and says so if others keep it from that", async () => {
    const { path, folder, store } = await open();
    const { store: other } = await open(path);
    await store.insert(anInvestor());
    using reader = new DatabaseSync(path);
    reader.exec("BEGIN; SELECT * FROM investors");
    await other.insert(anInvestor());
    await expect(store.close()).rejects.toThrow(`left its latest records in ${path}-wal`);
    reader.exec("ROLLBACK");
    // It has the file open, but does not read.
    await other.close();
    expect(tableAlone(folder, "investors.db").rows).toBe(2);
  });

  it("counts its commits from a number of its own, but not batches that write nothing", async () => {
    const counts = new Set<number>();
    for (let i = 0; i < 3; i += 1) {
      const { path, store } = await open();
      const count = countIn(path);
      expect(count).toBeGreaterThanOrEqual(2);
      counts.add(count);
      const record = anInvestor();
      await store.insert(record);
      await Promise.allSettled([store.insert(record)]);
      expect(countIn(path)).toBe(count + 1);
    }
    expect(counts.size).toBe(3);
  });

  it("counts on from the smallest after the largest", async () => {
    const path = await makeFile();
    runSql(path, `PRAGMA user_version = ${2 ** 31 - 1}`);
    const { store } = await open(path);
    const records = [anInvestor(), anInvestor()];
    for (const record of records) await store.insert(record);
    expect(countIn(path)).toBe(3);
    expect(await (await openCopy(path)).list({ limit: 3 })).toEqual(records);
  });

  it.each(["DELETE", "WAL"])(
    "counts the commits of a file that SQLite's .dump has made, in mode %s",
    async (mode) => {
      const path = join(temporaryFolder(), "investors.db");
      runSql(path, `PRAGMA journal_mode = ${mode}; ${olderTable}`);
      const { store } = await open(path);
      const record = anInvestor();
      await store.insert(record);
      expect(countIn(path)).toBeGreaterThan(1_000);
      expect(await (await openCopy(path)).list({ limit: 3 })).toEqual([record]);
    },
  );

  it("serves a table that was renamed and back, and given columns that need no value, also while it runs", async () => {
    const { path, store: first } = await open();
    const records = Array.from({ length: 3 }, () => anInvestor());
    const [before, beside, after] = records as [Investor, Investor, Investor];
    await first.insert(before);
    runSql(
      path,
      `${keep}; ALTER TABLE kept RENAME TO investors; CREATE VIEW v AS SELECT * FROM investors;
      ALTER TABLE investors ADD COLUMN note TEXT;
      ALTER TABLE investors ADD COLUMN b INT NOT NULL DEFAULT 1`,
    );
    await first.insert(beside);
    await first.ping();
    await first.close();
    const { store } = await open(path);
    await store.insert(after);
    expect(await store.find(after.id)).toEqual(after);
    expect(await store.list({ limit: 10 })).toEqual(records);
  });

  it.each([
    ["replaced", "cp investors.db copy.db; mv copy.db investors.db"],
    [
      "moved behind a symbolic link",
      "mkdir other; mv investors.db other; ln -s other/investors.db .",
    ],
    ["deleted", "rm investors.db*"],
    ["moved with its folder", "mv ../data ../moved"],
    ["parted from its WAL", "rm investors.db-wal"],
    ["parted from its index", "rm investors.db-shm"],
  ])("ends with the first ping after its file was %s", async (_, commands) => {
    const folder = join(temporaryFolder(), "data");
    const { store, fatal } = await open(join(folder, "investors.db"));
    await store.insert(anInvestor());
    await store.ping();
    outside("sh", "-c", `cd ${folder}; ${commands}`);
    await expect(store.ping()).rejects.toThrow("was moved, deleted or replaced");
    expect(fatal).toHaveLength(1);
    await expect(store.insert(anInvestor())).rejects.toThrow(StoreUnavailableError);
  });

  it("refuses a link beside which the WAL of its file was left", async () => {
    const { path, store } = await open();
    await store.insert(anInvestor());
    renameSync(path, `${path}.moved`);
    symlinkSync(`${path}.moved`, path);
    await expect(open(path)).rejects.toThrow(`its WAL ${path}-wal is there without it`);
  });

  const change = (sql: string) => (path: string) => {
    using db = new DatabaseSync(path, { defensive: false });
    db.exec(sql);
  };
  const declare = (part: string, other: string) =>
    change(`PRAGMA writable_schema = ON; UPDATE sqlite_schema
      SET sql = replace(sql, '${part}', '${other}') WHERE name = 'investors'`);
  const foreignTable = "its investors is a foreign table: another program has changed it";

  it.each<[why: string, change: (path: string) => void]>([
    [
      "its investors is a foreign view",
      change(`${keep}; CREATE VIEW investors AS SELECT * FROM kept`),
    ],
    [foreignTable, declare(" CHECK (length(id) = 16)", "")],
    [foreignTable, declare("STRICT, ", "")],
    [foreignTable, declare("language TEXT NOT NULL", "language TEXT NOT NULL COLLATE NOCASE")],
    ["it has no table investors", change(keep)],
    [
      "it has a trigger, Louder, which can change records: drop it",
      change(`CREATE TRIGGER Louder AFTER INSERT ON Investors BEGIN
        UPDATE investors SET city = upper(city) WHERE id = new.id; END`),
    ],
    ["belongs to another program", change(`${keep}; PRAGMA application_id = 0`)],
    ["belongs to another program", change("PRAGMA application_id = 77")],
    ["SQLite 26: file is not a database", (path) => writeFileSync(path, "x".repeat(10_000))],
    // Under its second name, its WAL would be another.
    ["it has other hard links", (path) => linkSync(path, `${path}.too`)],
  ])(
    "refuses a file as it is, as copies from and to it do, and says why: %s",
    async (why, spoil) => {
      const folder = temporaryFolder();
      const path = join(folder, "investors.db");
      for (const name of ["investors.db", "from.db"]) await makeSqlite(folder, name, 1);
      spoil(path);
      const before = readFileSync(path);
      await expect(open(path)).rejects.toThrow(why);
      for (const sides of [
        ["sqlite:investors.db", "out.ndjson"],
        ["sqlite:from.db", "sqlite:investors.db"],
      ] as const) {
        const refused = { code: 1, told: expect.stringContaining(why) };
        expect(await copyHere([...sides], { folder })).toEqual(refused);
      }
      expect(readFileSync(path)).toEqual(before);
    },
  );

  it("tells an id of another size between others as damage, where it is met", async () => {
    const { path, store } = await open();
    const first = `00${v4().slice(2)}`;
    const last = `ff${v4().slice(2)}`;
    for (const id of [first, last]) await store.insert(anInvestor({ id }));
    const values = `(x'800001', 1${", ''".repeat(10)})`;
    runSql(path, `PRAGMA ignore_check_constraints = ON; ${insertInto} VALUES ${values}`);
    expect((await store.find(last))?.id).toBe(last);
    await expect(store.list({ limit: 10 })).rejects.toThrow(`damaged after the id ${first}`);
  });

  it(
    "refuses a file that is itself a mount point, whose WAL would be elsewhere",
    needs("mount"),
    async () => {
      const path = join(temporaryFolder(), "a \\ b.db");
      writeFileSync(path, "");
      outside("mount", "--bind", await makeFile(), path);
      onTestFinished(() => void outside("umount", path));
      const why = "it is itself a mount point";
      await expect(open(path)).rejects.toThrow(why);
      expect(() => openSqliteFileToRead(path)).toThrow(why);
    },
  );

  it("reads a file with other hard links if all that it has is in it", async () => {
    const path = await makeFile();
    linkSync(path, `${path}.too`);
    runSql(path, "PRAGMA journal_mode = DELETE");
    expect(() => openSqliteFileToRead(path).close()).not.toThrow();
  });

  it("lets others commit while it rewrites a WAL", async () => {
    const { path, store } = await open();
    await Promise.all(Array.from({ length: 100 }, () => store.insert(anInvestor(largest))));
    using db = new DatabaseSync(path);
    using other = new DatabaseSync(path, { timeout: 0 });
    let seen = "";
    let isDone = false;
    const rewriting = rewriteWal(db, `${path}-wal`).then(() => {
      isDone = true;
    });
    while (!isDone) {
      try {
        other.exec("BEGIN IMMEDIATE; ROLLBACK");
        seen += "free ";
      } catch {
        seen += "locked ";
      }
      await nextTurn();
    }
    await rewriting;
    expect(seen).toMatch(/locked (free )+locked/);
  });

  it("waits for whoever locks the file while it rewrites a WAL", async () => {
    const { path, store } = await open();
    await Promise.all(Array.from({ length: 100 }, () => store.insert(anInvestor(largest))));
    using other = new DatabaseSync(path, { timeout: 0 });
    const opening = openSqliteFile(path, () => {});
    for (let isLocked = false; !isLocked; ) {
      await nextTurn();
      try {
        other.exec("BEGIN IMMEDIATE");
        isLocked = true;
      } catch {}
    }
    // After SQLite itself has waited, which blocks this thread.
    setTimeout(() => other.exec("ROLLBACK"));
    (await opening).db.close();
  });

  it("does not mistake a path that cannot be looked up for one that leads elsewhere", () => {
    const check = () => checkIdentity(join(temporaryFolder(), "x".repeat(300)), "");
    expect(check).toThrow(StoreUnavailableError);
    expect(() => checkIdentity(join(temporaryFolder(), "x"), "")).toThrow(FilesGoneError);
  });

  it("tells the outcome of each batch of creates, and of nothing else", async () => {
    const { path, store, outcomes } = await open();
    using other = new DatabaseSync(path);
    const record = anInvestor();
    other.exec(keep);
    await expect(store.insert(record)).rejects.toThrow(StoreUnavailableError);
    other.exec("ALTER TABLE kept RENAME TO investors");
    await store.ping();
    await store.insert(record);
    await expect(store.insert(record)).rejects.toThrow(DuplicateIdError);
    expect(outcomes).toEqual([expect.any(StoreUnavailableError), undefined]);
  });

  it("refuses one record at once and for good, where an index of another program rejects it", async () => {
    const { path, store, outcomes } = await open();
    await store.insert(anInvestor({ lastName: "first" }));
    runSql(path, "CREATE UNIQUE INDEX own ON investors (lower(last_name))");
    await expect(store.insert(anInvestor({ lastName: "first" }))).rejects.toThrow(
      new RecordRefusedError("SQLite 2067: UNIQUE constraint failed: index 'own'"),
    );
    await store.insert(anInvestor({ lastName: "second" }));
    expect(outcomes).toEqual([undefined, undefined]);
  });

  it("refuses a WAL whose file was moved, and has its records once that is back", async () => {
    const { path: moved, folder, store } = await open();
    const record = anInvestor();
    await store.insert(record);
    const path = join(folder, "left.db");
    const link = join(folder, "link.db");
    outside("cp", `${moved}-wal`, `${path}-wal`);
    symlinkSync(path, link);
    const wal = readFileSync(`${path}-wal`);
    const why = "put the file back";
    for (const each of [path, link]) await expect(open(each)).rejects.toThrow(why);
    for (const text of ["", "\n"]) {
      writeFileSync(path, text);
      for (const each of [path, link]) {
        await expect(open(each)).rejects.toThrow(why);
        expect(() => openSqliteFileToRead(each)).toThrow(why);
      }
    }
    expect(readFileSync(`${path}-wal`)).toEqual(wal);
    outside("cp", moved, path);
    expect(await (await open(path)).store.find(record.id)).toEqual(record);
  });

  it("may be made by several at once, and has what each of them stores", async () => {
    for (let i = 0; i < 5; i += 1) {
      const path = join(temporaryFolder(), "investors.db");
      const opened = await Promise.all(Array.from({ length: 4 }, () => open(path)));
      const records = opened.map(() => anInvestor());
      await Promise.all(opened.map(({ store }, n) => store.insert(records[n] as Investor)));
      for (const { store } of opened) {
        expect(await store.list({ limit: 10 })).toEqual(records);
      }
    }
  });

  it("waits for another process that writes, and says so if it waits too long", async () => {
    const { path, store } = await open();
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

  it("stores all but those that another program's rule rejects", async () => {
    const { path, store } = await open();
    runSql(
      path,
      `CREATE TRIGGER rule BEFORE INSERT ON investors WHEN new.last_name = 'refused'
      BEGIN SELECT raise(ABORT, 'a rule'); END`,
    );
    // The first is a batch of its own.
    const lastNames = ["fine", "fine", "refused", ...Array.from({ length: 400 }, () => "fine")];
    const inserts = lastNames.map((lastName) => store.insert(anInvestor({ lastName })));
    const outcomes = (await Promise.allSettled(inserts)).map(({ status }) => status);
    expect(outcomes).toEqual(lastNames.map((name) => (name === "fine" ? "fulfilled" : "rejected")));
    expect(await store.list({ limit: 1_000 })).toHaveLength(lastNames.length - 1);
  });

  it("commits at most 512 records at once", async () => {
    const { store, batchSizes } = await open();
    await Promise.all(Array.from({ length: 600 }, () => store.insert(anInvestor())));
    expect(batchSizes).toEqual([1, 512, 87]);
  });

  it("goes on while its WAL cannot be checkpointed, and warns once", needs("mount"), async () => {
    const disk = temporaryDisk(join(temporaryFolder(), "disk"));
    const { store, warnings, fatal } = await open(join(disk, "investors.db"));
    // Room for the part of the disk that the WAL may take, but not for the file to grow.
    writeFileSync(join(disk, "ballast"), Buffer.alloc(1_800 * 1024));
    for (let i = 0; i < 20; i += 1) await store.insert(anInvestor(largest)).catch(() => {});
    expect(warnings).toEqual([expect.stringContaining("cannot be checkpointed, and grows")]);
    expect(fatal).toEqual([]);
  });

  it("keeps its WAL small while it reads and writes", async () => {
    const { path, store } = await open();
    for (let round = 0; round < 10; round += 1) {
      const records = Array.from({ length: 250 }, () => anInvestor(largest));
      await Promise.all(records.map((record) => store.insert(record)));
      await store.list({ limit: 1_000 });
    }
    expect(statSync(`${path}-wal`).size).toBeLessThan(16 * 1024 * 1024);
  });
});
