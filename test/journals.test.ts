/** A journal that a killed program has left: SQLite plays it back into whatever file is there. */
import { execFileSync } from "node:child_process";
import { copyFileSync, existsSync, mkdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { v4 } from "uuid";
import { beforeAll, describe, expect, it } from "vitest";
import { prepareDisks } from "./gate/faults/failing-disk.ts";
import {
  copyHere,
  makeSqlite,
  openSqlite,
  removeHere,
  rowsOf,
  runSql,
  tableOf,
} from "./support/copying.ts";
import { sharedFolder, temporaryFolder } from "./support/folder.ts";
import { end, startService } from "./support/service.ts";
import { needs } from "./support/tools.ts";

/** A backup of 100 records, one in rollback mode, and journals as kills leave them. */
const left = sharedFolder();
const count = 100;

beforeAll(async () => {
  await makeSqlite(left, "backup", count);
  runSql(join(left, "backup"), `VACUUM INTO '${join(left, "vacuumed")}'`);
  const other = put("backup", join(left, "other"));

  /** Changes the file in rollback mode, as far as SQLite writes to it before the end of a transaction. */
  function leaveJournal(name: string, cacheSize: number): void {
    using db = new DatabaseSync(other);
    db.exec(`PRAGMA journal_mode = DELETE; PRAGMA cache_size = ${cacheSize};
      BEGIN; UPDATE investors SET city = 'Gotham'`);
    for (const suffix of ["", "-journal"]) copyFileSync(other + suffix, join(left, name + suffix));
    db.exec("ROLLBACK");
  }
  leaveJournal("amid a change", 1);
  // SQLite plays back none that it has not synced, and leaves it where it is.
  leaveJournal("before a change", 1_000);
});

/** The checksums of the files in a folder and in those in it. */
function checksums(folder: string): string {
  const command = "find . -type f | sort | xargs cksum";
  return execFileSync("sh", ["-c", command], { cwd: folder, encoding: "utf8" });
}

/** Copies a file of those above. */
function put(from: string, to: string): string {
  copyFileSync(join(left, from), to);
  return to;
}

/** What may be at the path `file.db` of a folder; each returns where SQLite has its journal. */
const places: Record<string, (path: string) => string> = {
  "a backup": (path) => put("backup", path),
  "no file": (path) => path,
  "an empty file": (path) => {
    writeFileSync(path, "");
    return path;
  },
  "a link to a backup": (path) => {
    const folder = join(dirname(path), "elsewhere");
    mkdirSync(folder);
    symlinkSync("elsewhere/there.db", path);
    return put("backup", join(folder, "there.db"));
  },
};

/** What uses the file; each resolves with what it says, and its status if it is a command. */
const uses: Record<string, (folder: string) => Promise<{ code: number; told: string }>> = {
  serve: (folder) =>
    openSqlite(join(folder, "file.db")).then(
      () => ({ code: 0, told: "opened" }),
      (error) => ({ code: 1, told: String(error) }),
    ),
  "copy from it": (folder) => copyHere(["sqlite:file.db", "out.ndjson"], { folder }),
  "copy to it": (folder) => copyHere([`sqlite:${left}/backup`, "sqlite:file.db"], { folder }),
  remove: (folder) => removeHere(folder, "sqlite:file.db", v4()),
};

describe.each(Object.entries(places))("a journal of another file beside %s", (place, make) => {
  it.each(Object.entries(uses))("is refused before anything changes: %s", async (use, attempt) => {
    const folder = temporaryFolder();
    const path = make(join(folder, "file.db"));
    put("amid a change-journal", `${path}-journal`);
    const before = checksums(folder);
    const isMissing = place === "no file" && ["copy from it", "remove"].includes(use);
    const why = isMissing ? "it does not exist" : `the journal ${path}-journal is there`;
    expect(await attempt(folder)).toEqual({ code: 1, told: expect.stringContaining(why) });
    expect(checksums(folder)).toBe(before);
    if (!place.includes("backup")) return;
    // As the error says.
    rmSync(`${path}-journal`);
    await (await openSqlite(path)).close();
    expect(rowsOf(folder, "file.db")).toBe(count);
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
