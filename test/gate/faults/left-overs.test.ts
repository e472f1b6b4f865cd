// Starts, copies and removals that are killed, and backups that are put beside what they leave.
import { copyFileSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as delay } from "node:timers/promises";
import { describe, expect, it } from "vitest";
import { makeSqlite, openSqlite, runSql } from "../../support/copying.ts";
import { createRandom, type Random, seedOf } from "../../support/random.ts";
import { type Run, run } from "../../support/service.ts";
import { needs } from "../../support/tools.ts";
import { minutes, timeout } from "./episodes.ts";
import { type FailingDisk, prepareDisks } from "./failing-disk.ts";

/** How many steps a life of a file has, after which a new one begins. */
const steps = minutes > 0 ? 40 : 12;

/** How many watched system calls a start, a short life and the end of it have, about. */
const calls = 60;

interface Backup {
  kind: string;
  path: string;
  ids: Set<string>;
}

describe("what killed commands leave", needs("cc"), () => {
  const createDisk = prepareDisks();

  it("costs no record, in the file or in a backup that is put there", { timeout }, async () => {
    const random = createRandom(seedOf("left-overs"));
    const until = performance.now() + minutes * 60_000;
    const counts: Record<string, number> = {};
    const count = (name: string) => {
      counts[name] = (counts[name] ?? 0) + 1;
    };
    do await live(createDisk(), random, count);
    while (performance.now() < until);
    console.log(`left-overs: ${JSON.stringify(counts, undefined, 1)}`);
  });
});

/** Has a file used, killed and restored, and looks after each step at what is in it. */
async function live(disk: FailingDisk, random: Random, count: (name: string) => void) {
  const { DISK_DURABLE: _, ...env } = disk.env;
  const path = join(disk.folder, "data/investors.db");
  const journal = join(disk.folder, "journal");
  /** Ids that have to be in the file, and those that may be. */
  let certain = new Set<string>();
  let possible = new Set<string>();
  const backups: Backup[] = [];

  function start(role: string): Run {
    const seed = String(random.int(0, 2 ** 31 - 1));
    return run(
      [role, path, journal, seed],
      env,
      disk.folder,
      resolve(import.meta.dirname, "actor.ts"),
    );
  }

  /** Runs an actor until it ends, mostly by a kill: at one of its system calls, or after some time. */
  async function killAmid(role: string): Promise<boolean> {
    const isKilled = random.int(0, 5) > 0;
    const atCall = random.int(0, 3) > 0;
    disk.setRules(isKilled && atCall ? `any * ${random.int(1, calls)} kill` : "");
    const actor = start(role);
    const { child, exited } = actor;
    const isEndless = role === "service";
    const waitMs = random.int(0, 1_500);
    const isOver = await Promise.race([exited.then(() => true), delay(waitMs).then(() => false)]);
    if (!isOver && isKilled && (isEndless || !atCall)) child.kill("SIGKILL");
    else if (isEndless) child.kill("SIGTERM");
    const code = await endOf(role, actor);
    disk.setRules("");
    note();
    return code === 0;
  }

  /** How an actor ends: a refusal is of what "rollback mode" has left. */
  async function endOf(role: string, { exited, output }: Run) {
    const code = await exited;
    count(`${role}: ${code}`);
    const isRefused = code === 1 && output().includes("-journal is there");
    if (!isRefused) expect([0, "SIGKILL", "SIGTERM"], `${role}: ${output()}`).toContain(code);
    return code;
  }

  /** Takes what the actors have noted: asked for, acknowledged, removed. */
  function note(): void {
    if (!existsSync(journal)) return;
    for (const line of readFileSync(journal, "utf8").split("\n")) {
      const id = line.slice(1);
      if (line.startsWith("+")) certain.add(id);
      if (line.startsWith("-")) certain.delete(id);
      if (/^[?-]/.test(line)) possible.add(id);
    }
    rmSync(journal);
  }

  const read = () =>
    readdirSync(dirname(path))
      .filter((name) => !name.endsWith("-shm"))
      .map((name) => [name, readFileSync(join(dirname(path), name)).toString("base64")]);

  /** The ids in the file, by a start and a list; or why it is refused as it is. */
  async function look(): Promise<Set<string> | string> {
    const before = read();
    try {
      const store = await openSqlite(path);
      const found = await store.list({ limit: 100_000 });
      await store.close();
      expect(found.filter(({ city }) => city === "Gotham")).toEqual([]);
      return new Set(found.map(({ id }) => id));
    } catch (error) {
      expect(read()).toEqual(before);
      return String(error);
    }
  }

  const isKnown = (id: string) => certain.has(id) || possible.has(id);
  const isAsKnown = (found: Set<string>) =>
    [...certain].every((id) => found.has(id)) && [...found].every(isKnown);

  /** Looks at the file as it was left; a journal is its own, and played back as the error says. */
  async function verify(): Promise<void> {
    let found = await look();
    const [, sql] = /plays it back .*'([^']+)'$/.exec(String(found)) ?? [];
    if (sql !== undefined) {
      runSql(path, sql);
      count("a journal of its own was refused, and played back");
      found = await look();
    }
    if (typeof found === "string") throw new Error(found);
    expect(
      [...certain].filter((id) => !found.has(id)),
      "lost",
    ).toEqual([]);
    expect(
      [...found].filter((id) => !isKnown(id)),
      "unknown",
    ).toEqual([]);
    // What was read stays.
    certain = found;
    possible = new Set();
  }

  async function keepBackup(kind: string): Promise<void> {
    if (kind === "copy") {
      if (!(await killAmid("copy from"))) return;
      copyFileSync(`${path}.copy`, `${journal}.copy`);
      for (const suffix of ["", "-wal", "-shm", "-journal"])
        rmSync(`${path}.copy${suffix}`, { force: true });
    } else {
      const { exited, output } = start(kind);
      expect(await exited, output()).toBe(0);
    }
    const to = `${journal}.${backups.length}`;
    copyFileSync(`${journal}.copy`, to);
    rmSync(`${journal}.copy`);
    const db = new DatabaseSync(to);
    const rows = db.prepare("SELECT lower(hex(id)) AS id FROM investors").all();
    db.close();
    const ids = rows.map(({ id }) =>
      String(id).replace(/(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-"),
    );
    backups.push({ kind, path: to, ids: new Set(ids) });
    expect(isAsKnown(new Set(ids)), `a backup by ${kind}`).toBe(true);
  }

  /** Puts a backup in the place of the file, and leaves what is beside it, as the pages warn of. */
  async function restore(): Promise<void> {
    if (backups.length === 0) return;
    const { kind, path: from, ids } = random.pick(backups);
    copyFileSync(from, path);
    let found = await look();
    if (typeof found === "string") {
      const [, what = ""] = /move the (WAL|journal) away/.exec(found) ?? [];
      expect(what, found).not.toBe("");
      count(`a backup by ${kind} beside a ${what} was refused`);
      for (const suffix of ["-wal", "-shm", "-journal"]) rmSync(path + suffix, { force: true });
      found = await look();
      if (typeof found === "string") throw new Error(found);
      expect(found).toEqual(ids);
    } else {
      // Its own WAL, of commits since it was made or restored, brings it up to date.
      const isCurrent = isAsKnown(found) && ![...found].every((id) => ids.has(id));
      count(`a backup by ${kind} was opened${isCurrent ? ", and its WAL brought in" : ""}`);
      if (!isCurrent) expect(found, kind).toEqual(ids);
    }
    certain = found;
    possible = new Set();
  }

  /** Leaves the journal of another program; mostly, a backup is put beside it. */
  async function rollBack(): Promise<void> {
    await verify();
    await endOf("rollback mode", start("rollback mode"));
    if (random.int(0, 2) > 0) await restore();
  }

  /** Begins with no file; what a kill amid the first start leaves is beside the backup. */
  async function beginAnew(): Promise<void> {
    rmSync(dirname(path), { recursive: true });
    mkdirSync(dirname(path));
    [certain, possible] = [new Set(), new Set()];
    await killAmid(random.pick(["start", "service"]));
    await restore();
  }

  const kinds: (() => Promise<unknown>)[] = [
    () => killAmid("service"),
    () => killAmid("service"),
    () => killAmid("start"),
    async () => certain.size > 0 && killAmid("remove"),
    rollBack,
    async () => {
      rmSync(`${journal}.source`, { force: true });
      const ids = (await makeSqlite(disk.folder, "journal.source", 50)).map(({ id }) => id);
      for (const id of ids) possible.add(id);
      if (await killAmid("copy to")) for (const id of ids) certain.add(id);
    },
    async () => {
      const services = [start("service"), start("service")];
      await delay(random.int(0, 1_200));
      services[0]?.child.kill("SIGKILL");
      await delay(random.int(0, 1_200));
      services[1]?.child.kill(random.pick(["SIGKILL", "SIGTERM"]));
      for (const service of services) await endOf("one of two services", service);
      note();
    },
    async () => {
      await verify();
      await keepBackup(random.pick(["copy", "backup", "VACUUM INTO"]));
    },
    restore,
    restore,
    beginAnew,
  ];
  await verify();
  await killAmid("service");
  await verify();
  await keepBackup(random.pick(["backup", "VACUUM INTO"]));
  await killAmid("service");
  await rollBack();
  await beginAnew();
  for (let step = 0; step < steps; step += 1) {
    const act = random.pick(kinds);
    if (act === restore || random.int(0, 2) > 0) await act();
    else await act().then(verify);
  }
  await verify();
  rmSync(disk.folder, { recursive: true });
}
