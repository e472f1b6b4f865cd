/** The programs in deploy/ that make backups and restore them. */
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import {
  copyFileSync,
  linkSync,
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
import { root } from "../support/clone.ts";
import {
  idOf,
  idsIn,
  insertInto,
  makeSqlite,
  rowsOf,
  runSql,
  tableOf,
} from "../support/copying.ts";
import { temporaryDisk, temporaryFolder } from "../support/folder.ts";
import { aCreate } from "../support/records.ts";
import { end, grpcClient, startService, waitFor } from "../support/service.ts";
import { needs } from "../support/tools.ts";

const dayMs = 86_400_000;

const nameAt = (ms: number) => `${new Date(ms).toISOString().replaceAll(":", "-")}.db`;

/** Runs a program of deploy/ beside the build, to its end. */
function runProgram(name: string, argument: string, env: Record<string, string>) {
  const args = [join(root, "deploy", name), argument];
  const options = { cwd: dirname(dirname(inject("bin"))), encoding: "utf8", env } as const;
  const { status, stdout, stderr } = spawnSync(process.execPath, args, options);
  return { status, told: stdout + stderr };
}

/** A folder with records in data/investors.db, and one for backups. */
async function prepare(count: number) {
  const folder = temporaryFolder();
  const investors = await makeSqlite(folder, "data/investors.db", count);
  const backups = join(folder, "backups");
  mkdirSync(backups);
  const env = { DATABASE_URL: `sqlite:${folder}/data/investors.db` };
  return {
    ...{ folder, investors, backups, env },
    backUp: (more = {}) => runProgram("backup.js", backups, { ...env, ...more }),
    restore: (from = backups, more = {}) => runProgram("restore.js", from, { ...env, ...more }),
    names: () => readdirSync(backups).toSorted(),
    /** The folders that restores have moved files to. */
    moved: () =>
      readdirSync(join(folder, "data"))
        .filter((name) => name.endsWith("Z"))
        .toSorted(),
  };
}

describe("backup.js", () => {
  it("makes a new file each time, then removes what it made longer ago than KEEP_DAYS", async () => {
    const { folder, backups, backUp, names } = await prepare(100);
    const others = ["mine.db", `${nameAt(0)}.bak`];
    const [older = "", newer = ""] = [3.01, 2.99].map((age) => nameAt(Date.now() - age * dayMs));
    for (const name of [...others, older, `${older}-shm`, `${older}-wal`, newer])
      writeFileSync(join(backups, name), "");
    const [first, second] = [backUp({ KEEP_DAYS: "3" }), backUp({ KEEP_DAYS: "3" })];
    for (const { status, told } of [first, second]) {
      expect(status, told).toBe(0);
      expect(told).toMatch(/^warning: .* is on the disk of the records, and is lost with it$/m);
    }
    const made = [first, second].map(({ told }) => /^made .*\/(.*\.db)$/m.exec(told)?.[1] ?? "");
    expect(names()).toEqual([...others, newer, ...made].toSorted());
    for (const name of made)
      expect(tableOf(folder, `backups/${name}`)).toEqual(tableOf(folder, "data/investors.db"));
  });

  it.each([
    ["the records cannot be read", "data", {}],
    ["the records are not there", "nowhere", {}],
    ["KEEP_DAYS is no number of days", "data", { KEEP_DAYS: "0" }],
    ["the records are in MongoDB", "data", { DATABASE_URL: "mongodb://127.0.0.1/investors" }],
  ])("makes and removes nothing if %s", async (_, data, env) => {
    const { folder, backups, backUp, names } = await prepare(100);
    truncateSync(join(folder, "data/investors.db"), 3_000);
    const old = nameAt(0);
    writeFileSync(join(backups, old), "");
    const DATABASE_URL = `sqlite:${folder}/${data}/investors.db`;
    const { status, told } = backUp({ DATABASE_URL, ...env });
    expect(status).toBe(1);
    expect(told).toMatch(/^error: /m);
    expect(names()).toEqual([old]);
  });

  it("removes no good backup once an empty file is served in place of the records", async () => {
    const { folder, backUp, names } = await prepare(1_000);
    expect(backUp().status).toBe(0);
    const [good] = names();
    await makeSqlite(folder, "data/empty.db", 0);
    const DATABASE_URL = `sqlite:${folder}/data/empty.db`;
    for (let run = 0; run < 2; run++) {
      const { status, told } = backUp({ DATABASE_URL, KEEP_DAYS: "1" });
      expect(status).toBe(1);
      expect(told).toMatch(
        /^error: .* less than half as large as an older backup, and none was removed/m,
      );
    }
    expect(names()[0]).toBe(good);
  });

  it("makes no folder: that of a disk which is not mounted is not there", async () => {
    const { folder, env } = await prepare(1);
    const { status, told } = runProgram("backup.js", join(folder, "unmounted"), env);
    expect(status).toBe(1);
    expect(told).toMatch(/^error: ENOENT.*unmounted/m);
  });

  it("keeps the last three, however old, and says that a name is ahead of now", async () => {
    const { folder, backups, backUp, restore, names } = await prepare(10);
    const [oldest = "", ...older] = [12, 11, 10].map((age) => nameAt(Date.now() - age * dayMs));
    const ahead = nameAt(Date.now() + 300 * dayMs);
    for (const name of [oldest, ...older, ahead]) writeFileSync(join(backups, name), "");
    const said = `warning: the name of ${ahead} is ahead of now`;
    const { status, told } = backUp({ KEEP_DAYS: "3" });
    expect(told).toContain(said);
    expect(status, told).toBe(0);
    expect(names()).toEqual([...older, expect.stringContaining(".db"), ahead]);
    const restored = restore();
    expect(restored.told).toContain(said);
    expect(restored.status, restored.told).toBe(0);
    expect(rowsOf(folder, "data/investors.db")).toBe(10);
  });

  it("takes empty settings for unset", async () => {
    const { backUp } = await prepare(1);
    const { status, told } = backUp({ DATABASE_URL: "", KEEP_DAYS: "" });
    expect([status, told]).toEqual([
      1,
      expect.stringMatching(/^error: ENOENT.*'data\/investors.db'$/m),
    ]);
  });

  it("leaves nothing when it is told to stop", async () => {
    const { folder, backups, env, names } = await prepare(1);
    // As large as 400,000 records.
    runSql(
      join(folder, "data/investors.db"),
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

  it("makes a whole one or none on a small disk", needs("mount"), async () => {
    const { folder, env } = await prepare(3_000);
    const { size } = statSync(join(folder, "data/investors.db"));
    const statuses = new Set<unknown>();
    for (let room = 0.7; room < 3.6; room += 0.35) {
      const name = `disk of ${room.toFixed(2)}`;
      const disk = temporaryDisk(join(folder, name), Math.ceil(room * size));
      const { status, told } = runProgram("backup.js", disk, env);
      statuses.add(status);
      if (status !== 0) expect(told).toMatch(new RegExp(`^error: cannot .*${disk}`, "m"));
      const made = readdirSync(disk);
      expect(made.length, told).toBe(status === 0 ? 1 : 0);
      for (const each of made)
        expect(tableOf(disk, each), name).toEqual(tableOf(folder, "data/investors.db"));
    }
    expect([...statuses]).toEqual([1, 0]);
  });

  it("does not warn of a disk of its own", needs("mount"), async () => {
    const { folder, env } = await prepare(1);
    const { status, told } = runProgram("backup.js", temporaryDisk(join(folder, "disk")), env);
    expect(told).not.toContain("warning");
    expect(status, told).toBe(0);
  });
});

describe("restore.js", () => {
  it("loses no record, however often it is followed, by a crash or not", async () => {
    const { folder, env, backUp, restore, moved } = await prepare(10);
    expect(backUp().status).toBe(0);
    const saved = tableOf(folder, "data/investors.db");
    const created: string[][] = [];
    for (const signal of ["SIGKILL", "SIGTERM"] as const) {
      const service = await startService(env, folder);
      const client = grpcClient(service);
      const records = await Promise.all([1, 2, 3].map(() => client.createInvestor(aCreate())));
      created.push(records.map(idOf));
      await end(service, signal);
      const { status, told } = restore();
      expect(status, told).toBe(0);
      expect(tableOf(folder, "data/investors.db")).toEqual(saved);
    }
    const left = moved().map((name) => idsIn(`${folder}/data/${name}/investors.db`));
    expect(left).toHaveLength(2);
    for (const [i, ids] of created.entries()) expect(left[i]).toEqual(expect.arrayContaining(ids));
  });

  it.each([
    ["is damaged", "damaged.db", /SQLite 26: file is not a database; nothing was changed$/m],
    ["is not there", "none.db", /there is no such backup; .*\/backups has none$/m],
    ["is in a folder that is not there", "unmounted/none.db", /ENOENT.*unmounted/m],
  ])("changes nothing if the backup %s", async (_, name, message) => {
    const { folder, backups, investors, restore } = await prepare(10);
    writeFileSync(join(backups, "damaged.db"), "not SQLite".repeat(1_000));
    const before = readFileSync(join(folder, "data/investors.db"));
    const { status, told } = restore(join(backups, name));
    expect(status).toBe(1);
    expect(told).toMatch(message);
    expect(readdirSync(join(folder, "data"))).toEqual(["investors.db"]);
    expect(readFileSync(join(folder, "data/investors.db"))).toEqual(before);
    expect(investors).toHaveLength(10);
  });

  it("takes the newest that has the name of a backup, and says how old it is", async () => {
    const { folder, backups, backUp, restore, names } = await prepare(2);
    expect(backUp().status).toBe(0);
    const [first = ""] = names();
    await makeSqlite(folder, "data/investors.db", 3);
    expect(backUp().status).toBe(0);
    copyFileSync(join(backups, first), join(backups, "pre-upgrade.db"));
    copyFileSync(join(backups, first), join(backups, "99991231.db"));
    writeFileSync(join(backups, "notes.db"), "no database");
    const { status, told } = restore();
    expect(told).toMatch(
      new RegExp(`^restoring ${join(backups, names()[1] ?? "")}, made 0.0 hours ago$`, "m"),
    );
    expect(status, told).toBe(0);
    expect(rowsOf(folder, "data/investors.db")).toBe(5);
    expect(restore(join(backups, "pre-upgrade.db")).status).toBe(0);
    expect(rowsOf(folder, "data/investors.db")).toBe(2);
  });

  it("takes a backup that has other hard links, as incremental copies of a folder have", async () => {
    const { folder, backups, backUp, restore, names } = await prepare(10);
    expect(backUp().status).toBe(0);
    linkSync(join(backups, names()[0] ?? ""), join(folder, "link.db"));
    const { status, told } = restore();
    expect(status, told).toBe(0);
  });

  it("restores wholly or changes nothing on a small disk", needs("mount"), async () => {
    const { folder, backups, backUp } = await prepare(3_000);
    expect(backUp().status).toBe(0);
    const { size } = statSync(join(folder, "data/investors.db"));
    const statuses = new Set<unknown>();
    for (let room = 1.1; room < 3.6; room += 0.3) {
      const name = `disk of ${room.toFixed(1)}`;
      const disk = temporaryDisk(join(folder, name), Math.ceil(room * size));
      copyFileSync(join(folder, "data/investors.db"), join(disk, "investors.db"));
      const DATABASE_URL = `sqlite://${disk}/investors.db`;
      const { status, told } = runProgram("restore.js", backups, { DATABASE_URL });
      statuses.add(status);
      if (status !== 0) expect(told).toMatch(/; nothing was changed$/m);
      const moved = readdirSync(disk).filter((each) => each !== "investors.db");
      expect(moved, told).toHaveLength(status === 0 ? 1 : 0);
      expect(tableOf(disk, "investors.db")).toEqual(tableOf(folder, "data/investors.db"));
    }
    expect([...statuses]).toEqual([1, 0]);
  });

  it("leaves what a killed run was about to move, if it is nowhere else any more", async () => {
    const { folder, backUp, restore, moved } = await prepare(10);
    backUp();
    const data = join(folder, "data");
    const old = join(data, `investors.db.${nameAt(Date.now() - 60_000).slice(0, -".db".length)}`);
    mkdirSync(old);
    writeFileSync(join(old, ".copy"), "begun");
    renameSync(join(data, "investors.db"), join(old, "investors.db"));
    const { status, told } = restore();
    expect(status, told).toBe(0);
    expect(moved()).toContain(basename(old));
    expect(readdirSync(old)).toEqual(["investors.db"]);
  });

  it("refuses a link to a file that is not there", async () => {
    const { folder, backUp, restore } = await prepare(1);
    backUp();
    const link = join(folder, "link.db");
    symlinkSync(join(folder, "unmounted/investors.db"), link);
    const { status, told } = restore(undefined, { DATABASE_URL: `sqlite:${link}` });
    expect({ status, told }).toEqual({ status: 1, told: expect.stringContaining("ENOENT") });
    expect(lstatSync(link).isSymbolicLink()).toBe(true);
  });

  it("refuses MongoDB, which has its own tools", async () => {
    const { restore, backups } = await prepare(1);
    const { status, told } = restore(backups, { DATABASE_URL: "mongodb://127.0.0.1/investors" });
    expect(status).toBe(1);
    expect(told).toMatch(/^error: DATABASE_URL is of MongoDB: use mongodump and mongorestore/);
  });

  it(
    "restores where nothing is, for the owner of the folder",
    needs("access for all"),
    async () => {
      const { folder, backups, backUp } = await prepare(10);
      expect(backUp().status).toBe(0);
      const data = join(folder, "var");
      mkdirSync(data);
      const isRoot = process.getuid?.() === 0;
      if (isRoot) spawnSync("chown", ["65534:65534", data]);
      const { status, told } = runProgram("restore.js", backups, {
        DATABASE_URL: `sqlite://${data}/investors.db`,
      });
      expect(status, told).toBe(0);
      expect(readdirSync(data)).toEqual(["investors.db"]);
      const { uid, mode } = statSync(join(data, "investors.db"));
      expect(uid).toBe(isRoot ? 65_534 : process.getuid?.());
      expect(mode & 0o777).toBe(0o600);
    },
  );
});
