// A journal that a killed program has left: SQLite plays it back into whatever file is there.
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { v4 } from "uuid";
import { beforeAll, describe, expect, it } from "vitest";
import { prepareDisks } from "./gate/faults/failing-disk.ts";
import {
  copyHere,
  makeSqlite,
  openSqlite,
  removeHere,
  runSql,
  tableOf,
} from "./support/copying.ts";
import { sharedFolder, temporaryFolder } from "./support/folder.ts";
import { end, startService } from "./support/service.ts";
import { needs } from "./support/tools.ts";

/** A backup of 100 records, one in rollback mode, and journals as kills leave them. */
const left = sharedFolder();
const count = 100;

/** Changes a file in rollback mode, as far as SQLite writes to it before the end of the transaction. */
function leaveJournal(path: string, sql: string, name: string, cacheSize = 1): void {
  const db = new DatabaseSync(path);
  db.exec(`PRAGMA journal_mode = DELETE; PRAGMA cache_size = ${cacheSize}; BEGIN; ${sql}`);
  copyFileSync(path, join(left, name));
  copyFileSync(`${path}-journal`, join(left, `${name}-journal`));
  db.exec("ROLLBACK");
  db.close();
}

beforeAll(async () => {
  await makeSqlite(left, "backup", count);
  runSql(join(left, "backup"), `VACUUM INTO '${join(left, "vacuumed")}'`);
  copyFileSync(join(left, "backup"), join(left, "other"));
  const change = "UPDATE investors SET city = 'Gotham'";
  leaveJournal(join(left, "other"), change, "amid a change");
  // SQLite plays back none that it has not synced, and leaves it where it is.
  leaveJournal(join(left, "other"), change, "before a change", 1_000);
  // It empties whatever file it is played back into.
  const rows = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9000)";
  const fill = `CREATE TABLE t (x); INSERT INTO t ${rows} SELECT i FROM n`;
  leaveJournal(join(left, "new"), fill, "of a new file");
});

/** What is in a folder, and what a link in it leads to. */
function read(folder: string): Record<string, string> {
  const names = readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name));
  return Object.fromEntries(names.map((name) => [name, readFileSync(name).toString("base64")]));
}

const uses: [string, (folder: string) => Promise<string>][] = [
  ["serve", (folder) => openSqlite(join(folder, "file.db")).then(() => "opened", String)],
  [
    "copy from it",
    async (folder) => fail(await copyHere(["sqlite:file.db", "out.ndjson"], { folder })),
  ],
  [
    "copy to it",
    async (folder) => fail(await copyHere([`sqlite:${left}/backup`, "sqlite:file.db"], { folder })),
  ],
  ["remove", async (folder) => fail(await removeHere(folder, "sqlite:file.db", v4()))],
];

function fail({ code, told }: { code: number; told: string }): string {
  expect(code).toBe(1);
  return told;
}

const places: [string, (folder: string) => string][] = [
  ["a backup", (folder) => put("backup", join(folder, "file.db"))],
  ["a backup by VACUUM INTO", (folder) => put("vacuumed", join(folder, "file.db"))],
  ["no file", (folder) => join(folder, "file.db")],
  [
    "an empty file",
    (folder) => {
      writeFileSync(join(folder, "file.db"), "");
      return join(folder, "file.db");
    },
  ],
  [
    "a link to a backup",
    (folder) => {
      mkdirSync(join(folder, "elsewhere"));
      symlinkSync("elsewhere/there.db", join(folder, "file.db"));
      return put("backup", join(folder, "elsewhere/there.db"));
    },
  ],
];

function put(from: string, to: string): string {
  copyFileSync(join(left, from), to);
  return to;
}

describe.each(places)("a journal of another file beside %s", (place, make) => {
  it.each(uses)("is refused before anything changes: %s", async (use, attempt) => {
    for (const journal of ["amid a change", "of a new file"]) {
      const folder = temporaryFolder();
      const path = make(folder);
      put(`${journal}-journal`, `${path}-journal`);
      const before = read(folder);
      const told = await attempt(folder);
      expect(read(folder)).toEqual(before);
      const isMissing = place === "no file" && /^copy from|^remove/.test(use);
      if (isMissing) expect(told).toContain("it does not exist");
      else expect(told).toContain(`the journal ${path}-journal is there`);
      if (!place.includes("backup")) continue;
      // As the error says.
      rmSync(`${path}-journal`);
      const store = await openSqlite(path);
      expect(await store.list({ limit: 1_000 })).toHaveLength(count);
      await store.close();
    }
  });
});

it.each(["amid a change", "before a change"])(
  "a journal of the file itself is played back by SQLite, and the file is as it was: %s",
  async (name) => {
    const folder = temporaryFolder();
    const path = put(name, join(folder, "file.db"));
    put(`${name}-journal`, `${path}-journal`);
    const told = String(await openSqlite(path).catch((error) => error));
    const [, sql = ""] = /sqlite3 '[^']+' '([^']+)'$/.exec(told) ?? [];
    runSql(path, sql);
    expect(existsSync(`${path}-journal`)).toBe(false);
    await (await openSqlite(path)).close();
    expect(tableOf(folder, "file.db")).toEqual(tableOf(left, "backup"));
  },
);

describe("a start", needs("cc"), () => {
  const createDisk = prepareDisks();

  it.each(["no file", "vacuumed"])("makes no journal: from %s", async (first) => {
    const disk = createDisk();
    mkdirSync(join(disk.folder, "data"), { recursive: true });
    if (first !== "no file") put(first, join(disk.folder, "data/investors.db"));
    disk.setRules("open -journal 1 EIO");
    const service = await startService(disk.env, disk.folder);
    expect(await end(service)).toBe(0);
    expect(service.output()).not.toContain("the disk fails");
  });
});
