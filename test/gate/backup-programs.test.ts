/** The programs in deploy/ that make backups and restore them. */
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import {
  copyFileSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { basename, dirname, join } from "node:path";
import { describe, expect, inject, it } from "vitest";
import { sizeOf } from "../../src/store/sqlite/paths.ts";
import { nameFrom, runProgram, toldBy } from "../support/backup-programs.ts";
import { root } from "../support/clone.ts";
import { insertInto, makeSqlite, rowsOf, runSql, tableOf } from "../support/copying.ts";
import { temporaryFolder, tryOnSmallDisks } from "../support/folder.ts";
import { waitFor } from "../support/service.ts";
import { needs } from "../support/tools.ts";

const file = "data/investors.db";

/** A folder with records in data/investors.db, and one for backups. */
async function prepare(count: number) {
  const folder = temporaryFolder();
  await makeSqlite(folder, file, count);
  const backups = join(folder, "backups");
  mkdirSync(backups);
  const env = { DATABASE_URL: `sqlite:${folder}/${file}` };
  return {
    ...{ folder, backups, env },
    backUp: (more = {}, to = backups) => runProgram("backup.js", to, { ...env, ...more }),
    restore: (from = backups, more = {}) => runProgram("restore.js", from, { ...env, ...more }),
    names: () => readdirSync(backups).toSorted(),
    /** The folders that restores have moved files to. */
    moved: () =>
      readdirSync(join(folder, "data"))
        .filter((name) => name.endsWith("Z"))
        .toSorted(),
  };
}

/** The room on disks from so many times what the records take to 3.5 times that. */
function roomFrom(least: number, folder: string) {
  const { size } = statSync(join(folder, file));
  return { from: least * size, step: 0.3 * size, to: 3.5 * size };
}

describe("backup.js", () => {
  it("makes a new file each time, then removes what it made longer ago than KEEP_DAYS", async () => {
    const { folder, backups, backUp, names } = await prepare(100);
    const others = ["mine.db", `${nameFrom(100)}.bak`];
    const [older, newer] = [nameFrom(3.01), nameFrom(2.99)];
    for (const name of [...others, older, `${older}-shm`, `${older}-wal`, newer])
      writeFileSync(join(backups, name), "");
    const told = [1, 2].map(() => toldBy(backUp({ KEEP_DAYS: "3" })));
    for (const each of told)
      expect(each).toMatch(/^warning: .* is on the disk of the records, and is lost with it$/m);
    const made = told.map((each) => /^made .*\/(.*\.db)$/m.exec(each)?.[1] ?? "");
    expect(names()).toEqual([...others, newer, ...made].toSorted());
    for (const name of made)
      expect(tableOf(folder, `backups/${name}`)).toEqual(tableOf(folder, file));
  });

  it.each([
    ["the records cannot be read", {}, "", /^error: cannot copy/m],
    ["the records are not there", { DATABASE_URL: "sqlite:none.db" }, "", /^error: ENOENT/m],
    ["KEEP_DAYS is no number of days", { KEEP_DAYS: "0" }, "", /^error: KEEP_DAYS must be/m],
    ["the records are in MongoDB", { DATABASE_URL: "mongodb://a/b" }, "", /^error: .* of MongoDB/m],
    // That of a disk which is not mounted.
    ["its folder is not there", {}, "unmounted", /^error: ENOENT.*unmounted/m],
    [
      "settings are empty, and nothing is where they point if unset",
      { DATABASE_URL: "", KEEP_DAYS: "" },
      "",
      /^error: ENOENT.*'data\/investors.db'$/m,
    ],
  ])("makes and removes nothing if %s", async (_, env, to, message) => {
    const { folder, backups, backUp, names } = await prepare(100);
    truncateSync(join(folder, file), 3_000);
    const old = nameFrom(100);
    writeFileSync(join(backups, old), "");
    expect(toldBy(backUp(env, join(backups, to)), 1)).toMatch(message);
    expect(names()).toEqual([old]);
  });

  it("removes no good backup once an empty file is served in place of the records", async () => {
    const { folder, backUp, names } = await prepare(1_000);
    toldBy(backUp());
    const [good] = names();
    await makeSqlite(folder, "data/empty.db", 0);
    const DATABASE_URL = `sqlite:${folder}/data/empty.db`;
    for (let run = 0; run < 2; run++)
      expect(toldBy(backUp({ DATABASE_URL, KEEP_DAYS: "1" }), 1)).toMatch(
        /^error: .* less than half as large as an older backup, and none was removed/m,
      );
    expect(names()[0]).toBe(good);
  });

  it("keeps the last three, however old, and says that a name is ahead of now", async () => {
    const { folder, backups, backUp, restore, names } = await prepare(10);
    const [oldest = "", ...older] = [12, 11, 10].map(nameFrom);
    const ahead = nameFrom(-300);
    for (const name of [oldest, ...older, ahead]) writeFileSync(join(backups, name), "");
    const said = `warning: the name of ${ahead} is ahead of now`;
    expect(toldBy(backUp({ KEEP_DAYS: "3" }))).toContain(said);
    expect(names()).toEqual([...older, expect.stringContaining(".db"), ahead]);
    expect(toldBy(restore())).toContain(said);
    expect(rowsOf(folder, file)).toBe(10);
  });

  it("leaves nothing when it is told to stop", async () => {
    const { folder, backups, env, names } = await prepare(1);
    // As large as 400,000 records.
    runSql(
      join(folder, file),
      `WITH RECURSIVE every (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM every WHERE x < 400000)
      ${insertInto} SELECT unhex(printf('%032x', x)), type, first_name, middle_name, last_name,
        address_line1, address_line2, city, state, zip_code, country, language FROM investors, every`,
    );
    const args = [join(root, "deploy/backup.js"), backups];
    const cwd = dirname(dirname(inject("bin")));
    const child = spawn(process.execPath, args, { cwd, env, stdio: "ignore" });
    await waitFor(async () => {
      const [partial = ""] = names();
      return sizeOf(join(backups, partial, "copy.db")) > 0;
    });
    child.kill("SIGTERM");
    expect(await once(child, "exit")).toEqual([1, null]);
    expect(names()).toEqual([]);
  });

  it("makes a whole one or none on a small disk of its own", needs("mount"), async () => {
    const { folder, backUp } = await prepare(3_000);
    await tryOnSmallDisks(folder, roomFrom(0.7, folder), (disk) => {
      const { status, told } = backUp({}, disk);
      expect(told).not.toContain("warning");
      if (status !== 0) expect(told).toMatch(new RegExp(`^error: cannot .*${disk}`, "m"));
      const made = readdirSync(disk);
      expect(made.length, told).toBe(status === 0 ? 1 : 0);
      for (const each of made) expect(tableOf(disk, each)).toEqual(tableOf(folder, file));
      return status;
    });
  });
});

describe("restore.js", () => {
  it.each([
    ["is damaged", "damaged.db", {}, /SQLite 26: file is not a database; nothing was changed$/m],
    ["is not there", "none.db", {}, /there is no such backup; .*\/backups has none$/m],
    ["is in a folder that is not there", "unmounted/none.db", {}, /ENOENT.*unmounted/m],
    [
      "is to get into MongoDB, which has its own tools",
      "",
      { DATABASE_URL: "mongodb://a/b" },
      /^error: DATABASE_URL is of MongoDB: use mongodump and mongorestore/,
    ],
  ])("changes nothing if the backup %s", async (_, name, env, message) => {
    const { folder, backups, restore } = await prepare(10);
    writeFileSync(join(backups, "damaged.db"), "not SQLite".repeat(1_000));
    const before = readFileSync(join(folder, file));
    expect(toldBy(restore(join(backups, name), env), 1)).toMatch(message);
    expect(readdirSync(join(folder, "data"))).toEqual(["investors.db"]);
    expect(readFileSync(join(folder, file))).toEqual(before);
  });

  it("takes the newest that has the name of a backup, and says how old it is", async () => {
    const { folder, backups, backUp, restore, names } = await prepare(2);
    toldBy(backUp());
    const [first = ""] = names();
    await makeSqlite(folder, file, 3);
    toldBy(backUp());
    const newest = join(backups, names()[1] ?? "");
    for (const name of ["pre-upgrade.db", "99991231.db"])
      copyFileSync(join(backups, first), join(backups, name));
    writeFileSync(join(backups, "notes.db"), "no database");
    expect(toldBy(restore())).toMatch(new RegExp(`^restoring ${newest}, made 0.0 hours ago$`, "m"));
    expect(rowsOf(folder, file)).toBe(5);
    toldBy(restore(join(backups, "pre-upgrade.db")));
    expect(rowsOf(folder, file)).toBe(2);
  });

  it("restores wholly or changes nothing on a small disk", needs("mount"), async () => {
    const { folder, backups, backUp, restore } = await prepare(3_000);
    toldBy(backUp());
    await tryOnSmallDisks(folder, roomFrom(1.1, folder), (disk) => {
      copyFileSync(join(folder, file), join(disk, "investors.db"));
      const { status, told } = restore(backups, { DATABASE_URL: `sqlite:${disk}/investors.db` });
      if (status !== 0) expect(told).toMatch(/; nothing was changed$/m);
      const moved = readdirSync(disk).filter((each) => each !== "investors.db");
      expect(moved, told).toHaveLength(status === 0 ? 1 : 0);
      expect(tableOf(disk, "investors.db")).toEqual(tableOf(folder, file));
      return status;
    });
  });

  it("leaves what a killed run was about to move, if it is nowhere else any more", async () => {
    const { folder, backUp, restore, moved } = await prepare(10);
    toldBy(backUp());
    const old = join(folder, `${file}.${nameFrom(0.1).slice(0, -".db".length)}`);
    mkdirSync(old);
    writeFileSync(join(old, ".copy"), "begun");
    renameSync(join(folder, file), join(old, "investors.db"));
    toldBy(restore());
    expect(moved()).toContain(basename(old));
    expect(readdirSync(old)).toEqual(["investors.db"]);
  });

  it("refuses a link to a file that is not there", async () => {
    const { folder, backUp, restore } = await prepare(1);
    toldBy(backUp());
    const link = join(folder, "link.db");
    symlinkSync(join(folder, "unmounted/investors.db"), link);
    expect(toldBy(restore(undefined, { DATABASE_URL: `sqlite:${link}` }), 1)).toContain("ENOENT");
    expect(lstatSync(link).isSymbolicLink()).toBe(true);
  });

  it(
    "restores where nothing is, for the owner of the folder",
    needs("access for all"),
    async () => {
      const { folder, backUp, restore } = await prepare(10);
      toldBy(backUp());
      const data = join(folder, "var");
      mkdirSync(data);
      const isRoot = process.getuid?.() === 0;
      if (isRoot) spawnSync("chown", ["65534:65534", data]);
      toldBy(restore(undefined, { DATABASE_URL: `sqlite:${data}/investors.db` }));
      expect(readdirSync(data)).toEqual(["investors.db"]);
      const { uid, mode } = statSync(join(data, "investors.db"));
      expect(uid).toBe(isRoot ? 65_534 : process.getuid?.());
      expect(mode & 0o777).toBe(0o600);
    },
  );
});
