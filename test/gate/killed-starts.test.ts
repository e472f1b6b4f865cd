// What a start leaves that is killed at one of its system calls, and a backup that is then put there.
import { copyFileSync, renameSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { describe, expect, it } from "vitest";
import { makeSqlite, openSqlite, runSql } from "../support/copying.ts";
import { createRandom, seedOf } from "../support/random.ts";
import { aCreate } from "../support/records.ts";
import { end, grpcClient, run, startService } from "../support/service.ts";
import { needs } from "../support/tools.ts";
import { pathsOn, startActor } from "./faults/actors.ts";
import { type FailingDisk, prepareDisks, readFiles } from "./faults/failing-disk.ts";

const count = 1_000;

/** Makes a file with records, and a backup of it in each way, while the file is in use. */
async function makeBackups(disk: FailingDisk): Promise<[kind: string, path: string][]> {
  const { path, copy } = pathsOn(disk);
  await makeSqlite(disk.data, "investors.db", count);
  const store = await openSqlite(path);
  const backups: [string, string][] = [];
  for (const kind of ["VACUUM INTO", "backup", "copy"]) {
    const { exited, output } = startActor(disk, kind);
    expect(await exited, output()).toBe(0);
    backups.push([kind, join(disk.folder, kind)]);
    renameSync(copy, join(disk.folder, kind));
  }
  await store.close();
  return backups;
}

/** How many records a start finds in a file; or why it refuses that, which leaves it as it is. */
async function countRecords(path: string): Promise<number | string> {
  const read = () =>
    [...readFiles(dirname(path))].map(([name, data]) => [name, data.toString("base64")]);
  const before = read();
  const store = await openSqlite(path).catch(String);
  if (typeof store === "string") {
    expect(read()).toEqual(before);
    return store;
  }
  const found = await store.list({ limit: 100_000 });
  await store.close();
  return found.length;
}

/**
 * Puts a backup in the place of a file, and leaves what is beside it, as the pages warn of. If a start
 * refuses that, moves the WAL away as the error says.
 *
 * @returns how many records are served then, and whether it was refused
 * @throws {Error} it is refused for something else, or after that
 */
async function putBackup(from: string, path: string) {
  copyFileSync(from, path);
  let served = await countRecords(path);
  const isRefused = String(served).includes("move the WAL away");
  if (isRefused) {
    for (const suffix of ["-wal", "-shm"]) rmSync(path + suffix, { force: true });
    served = await countRecords(path);
  }
  if (typeof served === "string") throw new Error(served);
  return { served, isRefused };
}

describe("a start that is killed at any of its system calls", needs("cc"), () => {
  const createDisk = prepareDisks();

  it.each(["no file", "VACUUM INTO", ".dump"])(
    "leaves every backup that is put there whole: from %s",
    async (first) => {
      const disk = createDisk();
      const { path } = pathsOn(disk);
      const backups = await makeBackups(disk);
      const told: string[] = [];
      for (let call = 1, code: unknown; code !== 0; call += 1) {
        disk.restore(new Map());
        if (first !== "no file") copyFileSync(join(disk.folder, "VACUUM INTO"), path);
        // Its commits are counted from now on.
        if (first === ".dump") runSql(path, "PRAGMA user_version = 0");
        disk.setRules(`any * ${call} kill`);
        const { exited, output } = startActor(disk, "start");
        code = await exited;
        if (code !== 0) expect(code, output()).toBe("SIGKILL");
        const at = `call ${call}: ${output().trim()}`;
        // The index of the WAL is not among what is left: the calls before it leave the same.
        if (at.includes("-shm ")) continue;
        const left = readFiles(disk.data);
        const results: string[] = [];
        for (const [kind, from] of backups) {
          disk.restore(left);
          const { served, isRefused } = await putBackup(from, path);
          expect(served, `${at}, ${kind}`).toBe(count);
          results.push(`${kind} ${isRefused ? "refused" : "opened"}`);
        }
        // Without a backup, the next start goes on.
        disk.restore(left);
        expect(await countRecords(path), at).toBe(first === "no file" ? 0 : count);
        told.push(`${at}: ${results}`);
      }
      console.log(told.join("\n"));
      expect(told.join()).toContain("write investors.db kill");
      expect(told.length).toBeGreaterThan(5);
    },
  );
});

describe("two first starts at once", needs("cc"), () => {
  const createDisk = prepareDisks();

  it("lose nothing if one of them is killed at any of its system calls", async () => {
    const random = createRandom(seedOf("a killed first start beside another"));
    for (let round = 0; round < 15; round += 1) {
      const disk = createDisk();
      disk.setRules(`any * ${random.int(1, 35)} kill`);
      const victim = run([], disk.env, disk.folder);
      await delay(random.int(0, 200));
      const service = await startService({}, disk.folder);
      const client = grpcClient(service);
      const createSome = () =>
        Promise.all(Array.from({ length: 20 }, () => client.createInvestor(aCreate())));
      await createSome();
      await end(victim, "SIGKILL");
      await createSome();
      await end(service, "SIGKILL");
      expect(await countRecords(pathsOn(disk).path)).toBe(40);
    }
  });
});
