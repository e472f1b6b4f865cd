/** backup.js and restore.js, ended or failing at each of their steps, by a power cut too. */
import { copyFileSync, existsSync, mkdirSync, readdirSync, rmSync, statSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { nameFrom, runProgram, toldBy } from "../support/backup-programs.ts";
import { makeSqlite, openSqlite, outside, tableOf } from "../support/copying.ts";
import { makeImage, mountImage, temporaryFolder } from "../support/folder.ts";
import { anInvestor } from "../support/records.ts";
import { preload } from "../support/service.ts";
import { needs } from "../support/tools.ts";

/** Ends the process, or fails, at the STEP-th of its calls that change a disk. */
const striking = `
  import fs from "node:fs";
  import { syncBuiltinESMExports } from "node:module";
  let step = 0;
  for (const name of ["chown", "fsync", "link", "mkdir", "mkdtemp", "open", "rename", "rm", "rmdir"]) {
    const real = fs[name + "Sync"];
    fs[name + "Sync"] = (...args) => {
      // Modules are opened, too; a descriptor is one of the disk's.
      const isOnDisk = Number.isInteger(args[0]) || String(args[0]).includes(process.env.DISK);
      if (isOnDisk) step += 1;
      if (!isOnDisk || step !== Number(process.env.STEP)) return real(...args);
      console.error("struck at " + name);
      if (process.env.WAY === "kill") process.kill(process.pid, "SIGKILL");
      throw new Error("EIO: " + name);
    };
  }
  syncBuiltinESMExports();`;

/** Runs a program of deploy/ on a disk, to its end or to a step. */
function runOn(disk: string, name: string, step = 0, way = "") {
  const strike = { DISK: disk, STEP: String(step), WAY: way, NODE_OPTIONS: preload(striking) };
  const env = { DATABASE_URL: `sqlite:${disk}/data/investors.db`, ...strike };
  return runProgram(name, join(disk, "backups"), env);
}

/** Makes disks with records in data/, of which the latest are in the WAL, and with backups. */
async function prepare() {
  const folder = temporaryFolder();
  await makeSqlite(folder, "a.db", 100);
  const saved = tableOf(folder, "a.db");
  const image = makeImage(folder);
  using mounted = mountImage(image);
  const { disk } = mounted;
  for (const name of ["data", "backups"]) mkdirSync(join(disk, name));
  outside("cp", join(folder, "a.db"), join(disk, "data/investors.db"));
  toldBy(runOn(disk, "backup.js"));
  const [made = ""] = readdirSync(join(disk, "backups"));
  for (const name of [20, 19, 18].map(nameFrom))
    copyFileSync(join(disk, "backups", made), join(disk, "backups", name));
  rmSync(join(disk, "backups", made));

  const store = await openSqlite(join(folder, "a.db"));
  await store.insert(anInvestor());
  for (const suffix of ["", "-wal"])
    outside("cp", join(folder, `a.db${suffix}`), join(disk, `data/investors.db${suffix}`));
  await store.close();
  rmSync(join(disk, "data/investors.db-shm"), { force: true });

  return {
    ...{ saved, latest: tableOf(folder, "a.db") },
    /** Mounts a disk of its own for a step. */
    mountFor(step: number) {
      copyFileSync(image, join(folder, String(step)));
      return mountImage(join(folder, String(step)));
    },
  };
}

type Table = ReturnType<typeof tableOf>;

/** The backups on a disk, which have to be whole: three of them at least. */
function expectBackups(disk: string, tables: Table[]): void {
  const names = readdirSync(join(disk, "backups")).filter((name) => /^\d.*\.db$/.test(name));
  expect(names.length).toBeGreaterThanOrEqual(3);
  for (const name of names) expect(tables).toContainEqual(tableOf(disk, `backups/${name}`));
}

/** The service is refused what it should not serve, or serves all that there was, or the backup. */
async function expectServable(disk: string, tables: Table[]): Promise<void> {
  const path = join(disk, "data/investors.db");
  const store = await openSqlite(path).catch((error: Error) => {
    expect(error.message).toMatch(/hard links|do not belong together/);
  });
  await store?.close();
  if (store) expect(tables).toContainEqual(tableOf(disk, "data/investors.db"));
}

/** The tables in the folders to which restores have moved what was there. */
function movedOn(disk: string): Table[] {
  const files = readdirSync(join(disk, "data")).map((name) => `data/${name}/investors.db`);
  return files.filter((file) => existsSync(join(disk, file))).map((file) => tableOf(disk, file));
}

/** Has a program end or fail at each of its steps, and looks at the disk, and what a power cut leaves. */
async function strike(
  program: string,
  way: string,
  look: (left: string, told: string, tables: { saved: Table; latest: Table }) => Promise<void>,
): Promise<void> {
  const { mountFor, ...tables } = await prepare();
  for (let step = 1, isStruck = true; isStruck; step += 1) {
    using mounted = mountFor(step);
    const { disk, cutPower } = mounted;
    const { status, told } = runOn(disk, program, step, way);
    isStruck = told.includes("struck at");
    expect(status === 0, told).toBe(!isStruck);
    if (told.includes("nothing was changed")) {
      const left = readdirSync(join(disk, "data")).filter((name) => !name.endsWith("-shm"));
      expect(left, told).toEqual(["investors.db", "investors.db-wal"]);
      expect(statSync(join(disk, "data/investors.db")).nlink).toBe(1);
    }
    for (const left of [cutPower(), disk]) await look(left, told, tables);
  }
}

describe.each(["kill", "fail"])("at each step: %s", (way) => {
  it("a backup leaves what was there, and is made by the same command", needs("loop"), async () => {
    await strike("backup.js", way, async (left, told, { saved, latest }) => {
      expectBackups(left, [saved, latest]);
      const [, made] = /^made .*\/(.*)$/m.exec(told) ?? [];
      if (made) expect(tableOf(left, `backups/${made}`), told).toEqual(latest);
      toldBy(runOn(left, "backup.js"));
      expectBackups(left, [saved, latest]);
    });
  });

  it("a restore loses nothing, and is made by the same command", needs("loop"), async () => {
    await strike("restore.js", way, async (left, told, { saved, latest }) => {
      // A start in between, after a power cut.
      if (left.endsWith(".cut.mounted")) await expectServable(left, [latest, saved]);
      if (told.includes("struck at")) toldBy(runOn(left, "restore.js"));
      expect(tableOf(left, "data/investors.db"), told).toEqual(saved);
      expect(movedOn(left), told).toContainEqual(latest);
      await expectServable(left, [saved]);
    });
  });
});
