// What a start leaves that is killed at one of its system calls, and a backup that is then put there.
import { execFileSync } from "node:child_process";
import {
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { join, resolve } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { describe, expect, it } from "vitest";
import { copyHere, makeSqlite, openSqlite, runSql } from "../support/copying.ts";
import { temporaryFolder } from "../support/folder.ts";
import { createRandom, seedOf } from "../support/random.ts";
import { aCreate } from "../support/records.ts";
import { end, grpcClient, run, type Service, startService } from "../support/service.ts";
import { needs } from "../support/tools.ts";
import { type FailingDisk, type Files, prepareDisks } from "./faults/failing-disk.ts";

const actor = resolve(import.meta.dirname, "./faults/actor.ts");

const count = 1_000;

/** Makes a file with records, and a backup of it in each way, while the file is in use. */
async function makeBackups(folder: string): Promise<Record<string, string>> {
  await makeSqlite(folder, "source.db", count);
  const paths = Object.fromEntries(
    ["copy", "backup", "VACUUM INTO"].map((kind) => [kind, join(folder, `${kind}.db`)]),
  );
  const store = await openSqlite(join(folder, "source.db"));
  await copyHere(["sqlite:source.db", "sqlite:copy.db"], { folder });
  const script = `const { backup, DatabaseSync } = require("node:sqlite");
    const db = new DatabaseSync("source.db");
    db.exec("VACUUM INTO 'VACUUM INTO.db'");
    backup(db, "backup.db");`;
  execFileSync(process.execPath, ["-e", script], { cwd: folder });
  await store.close();
  return paths;
}

/** The files in a folder but the index of the WAL, which a kill leaves and nobody trusts. */
function read(folder: string): Files {
  const names = readdirSync(folder).filter((name) => !name.endsWith("-shm"));
  return new Map(names.map((name) => [name, readFileSync(join(folder, name))]));
}

async function countRecords(path: string): Promise<number> {
  const store = await openSqlite(path);
  const records = await store.list({ limit: 2 * count });
  await store.close();
  return records.length;
}

/** Puts a backup over what a kill has left, and starts; if that is refused, as the error says. */
async function restore(left: Files, from: string, at: string): Promise<"opened" | "refused"> {
  const folder = mkdtempSync(join(temporaryFolder(), "restored-"));
  const path = join(folder, "investors.db");
  for (const [name, content] of left) writeFileSync(join(folder, name), content);
  copyFileSync(from, path);
  const before = read(folder);
  let refused = "";
  const records = await countRecords(path).catch((error) => {
    refused = String(error);
    return undefined;
  });
  if (records === undefined) {
    expect(refused, at).toMatch(/move the (WAL|journal) away/);
    expect(read(folder), at).toEqual(before);
    for (const name of readdirSync(folder)) {
      if (name !== "investors.db") rmSync(join(folder, name));
    }
  }
  expect(records ?? (await countRecords(path)), at).toBe(count);
  rmSync(folder, { recursive: true });
  return records === undefined ? "refused" : "opened";
}

describe("a start that is killed at any of its system calls", needs("cc"), () => {
  const createDisk = prepareDisks();

  /** What each kill leaves in a folder, by the call before which it came, and what the last start leaves. */
  async function* killAtEach(disk: FailingDisk, prepare: (data: string) => void) {
    const { DISK_DURABLE: _, ...env } = disk.env;
    const data = join(disk.folder, "data");
    for (let call = 1; ; call += 1) {
      rmSync(data, { recursive: true });
      mkdirSync(data);
      prepare(data);
      disk.setRules(`any * ${call} kill`);
      const args = ["start", join(data, "investors.db"), join(disk.folder, "journal"), "1"];
      const { exited, output } = run(args, env, disk.folder, actor);
      const code = await exited;
      if (code !== 0) expect(code, output()).toBe("SIGKILL");
      yield { at: `call ${call}: ${output().trim()}`, left: read(data) };
      if (code === 0) return;
    }
  }

  it.each(["no file", "VACUUM INTO", ".dump"])(
    "leaves every backup that is put there whole: from %s",
    async (first) => {
      const backups = await makeBackups(temporaryFolder());
      const prepare = (data: string) => {
        if (first === "no file") return;
        const path = join(data, "investors.db");
        copyFileSync(backups["VACUUM INTO"] ?? "", path);
        // Its commits are counted from now on.
        if (first === ".dump") runSql(path, "PRAGMA user_version = 0");
      };
      const told: string[] = [];
      for await (const { at, left } of killAtEach(createDisk(), prepare)) {
        // The index of the WAL is not among what is left: the calls before it leave the same.
        if (at.includes("-shm ")) continue;
        const results: string[] = [];
        for (const [kind, from] of Object.entries(backups)) {
          results.push(`${kind} ${await restore(left, from, `${at}, ${kind}`)}`);
        }
        // Without a backup, the next start goes on.
        const folder = temporaryFolder();
        for (const [name, content] of left) writeFileSync(join(folder, name), content);
        const records = await countRecords(join(folder, "investors.db"));
        expect(records, at).toBe(first === "no file" ? 0 : count);
        expect(
          [...left.keys()].filter((name) => name.endsWith("-journal")),
          at,
        ).toEqual([]);
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
      const { DISK_DURABLE: _, ...env } = disk.env;
      disk.setRules(`any * ${random.int(1, 35)} kill`);
      const victim = run([], env, disk.folder);
      await delay(random.int(0, 200));
      const service = await startService({}, disk.folder);
      const created = await Promise.all(createSome(service));
      await end(victim, "SIGKILL");
      created.push(...(await Promise.all(createSome(service))));
      await end(service, "SIGKILL");
      expect(await countRecords(join(disk.folder, "data/investors.db"))).toBe(created.length);
    }
  });
});

/** Creates records; each call resolves with an id that was acknowledged. */
function createSome(service: Service): Promise<string>[] {
  const client = grpcClient(service);
  return Array.from({ length: 20 }, async () => (await client.createInvestor(aCreate())).id);
}
