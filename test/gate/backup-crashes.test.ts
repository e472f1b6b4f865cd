/** backup.js and restore.js, ended or failing at each of their steps, by a power cut too. */
import { spawnSync } from "node:child_process";
import { copyFileSync, existsSync, mkdirSync, readdirSync, rmSync, statSync } from "node:fs";
import { dirname, join } from "node:path";
import { describe, expect, inject, it } from "vitest";
import { root } from "../support/clone.ts";
import { makeSqlite, openSqlite, outside, tableOf } from "../support/copying.ts";
import { makeImage, mountImage, temporaryFolder } from "../support/folder.ts";
import { anInvestor } from "../support/records.ts";
import { needs } from "../support/tools.ts";

const dayMs = 86_400_000;

const nameAt = (ms: number) => `${new Date(ms).toISOString().replaceAll(":", "-")}.db`;

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
function runProgram(name: string, disk: string, step = 0, way = "") {
  const imports = `--import=data:text/javascript,${encodeURIComponent(striking)}`;
  const args = [imports, join(root, "deploy", name), join(disk, "backups")];
  const strike = { DISK: disk, STEP: String(step), WAY: way };
  const env = { DATABASE_URL: `sqlite:${disk}/data/investors.db`, ...strike };
  const options = { cwd: dirname(dirname(inject("bin"))), encoding: "utf8", env } as const;
  const { status, stdout, stderr } = spawnSync(process.execPath, args, options);
  const told = stdout + stderr;
  return { status, told, isStruck: told.includes("struck at") };
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
  const { status, told } = runProgram("backup.js", disk);
  expect(status, told).toBe(0);
  const [made = ""] = readdirSync(join(disk, "backups"));
  const ages = [20, 19, 18].map((days) => join(disk, "backups", nameAt(Date.now() - days * dayMs)));
  for (const path of ages) copyFileSync(join(disk, "backups", made), path);
  rmSync(join(disk, "backups", made));

  const store = await openSqlite(join(folder, "a.db"));
  await store.insert(anInvestor());
  for (const suffix of ["", "-wal"])
    outside("cp", join(folder, `a.db${suffix}`), join(disk, `data/investors.db${suffix}`));
  await store.close();
  rmSync(join(disk, "data/investors.db-shm"), { force: true });

  /** Mounts a disk of its own for a step. */
  function mountFor(step: number) {
    copyFileSync(image, join(folder, String(step)));
    return mountImage(join(folder, String(step)));
  }

  return { mountFor, saved, latest: tableOf(folder, "a.db") };
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

describe.each(["kill", "fail"])("at each step: %s", (way) => {
  it("a backup leaves what was there, and is made by the same command", needs("loop"), async () => {
    const { mountFor, saved, latest } = await prepare();
    for (let step = 1; ; step += 1) {
      using mounted = mountFor(step);
      const { disk, cutPower } = mounted;
      const { isStruck, status, told } = runProgram("backup.js", disk, step, way);
      expect(status === 0, told).toBe(!isStruck);
      for (const left of [cutPower(), disk]) {
        expectBackups(left, [saved, latest]);
        const [, made] = /^made .*\/(.*)$/m.exec(told) ?? [];
        if (made) expect(tableOf(left, `backups/${made}`), told).toEqual(latest);
        const again = runProgram("backup.js", left);
        expect(again.status, again.told).toBe(0);
        expectBackups(left, [saved, latest]);
      }
      if (!isStruck) break;
    }
  });

  it("a restore loses nothing, and is made by the same command", needs("loop"), async () => {
    const { mountFor, saved, latest } = await prepare();
    for (let step = 1; ; step += 1) {
      using mounted = mountFor(step);
      const { disk, cutPower } = mounted;
      const { isStruck, status, told } = runProgram("restore.js", disk, step, way);
      expect(status === 0, told).toBe(!isStruck);
      if (told.includes("nothing was changed")) {
        const left = readdirSync(join(disk, "data")).filter((name) => !name.endsWith("-shm"));
        expect(left, told).toEqual(["investors.db", "investors.db-wal"]);
        expect(statSync(join(disk, "data/investors.db")).nlink).toBe(1);
      }
      for (const left of [cutPower(), disk]) {
        // A start in between.
        if (left !== disk) await expectServable(left, [latest, saved]);
        const again = isStruck && runProgram("restore.js", left);
        if (again) expect(again.status, again.told).toBe(0);
        expect(tableOf(left, "data/investors.db"), told).toEqual(saved);
        expect(movedOn(left), told).toContainEqual(latest);
        await expectServable(left, [saved]);
      }
      if (!isStruck) break;
    }
  });
});
