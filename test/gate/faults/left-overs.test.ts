// Starts, copies and removals that are killed, and backups that are put beside what they leave.
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync } from "node:fs";
import { setTimeout as delay } from "node:timers/promises";
import { describe, expect, it } from "vitest";
import { sizeOf } from "../../../src/store/sqlite/paths.ts";
import { idOf, idsIn, makeSqlite, runSql } from "../../support/copying.ts";
import type { Random } from "../../support/random.ts";
import { hasEnded, type Run, waitFor } from "../../support/service.ts";
import { needs } from "../../support/tools.ts";
import { Known, listIds, pathsOn, putBackup, startActor } from "./actors.ts";
import { minutes, repeat, timeout } from "./episodes.ts";
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

  it("costs no record, in the file or in a backup that is put there", { timeout }, () =>
    repeat("left-overs", (random, count) => live(createDisk(), random, count)),
  );
});

/** Has a file used, killed and restored, and looks after each step at what is in it. */
async function live(disk: FailingDisk, random: Random, count: (name: string) => void) {
  const { path, journal, copy } = pathsOn(disk);
  let known = new Known();
  const backups: Backup[] = [];

  const start = (role: string) => startActor(disk, role, random);
  const notes = () => (existsSync(journal) ? readFileSync(journal, "utf8") : "");
  const untilOpen = ({ child }: Run) => waitFor(() => hasEnded(child) || notes().includes("open"));

  /** Runs an actor until it ends, mostly by a kill: at one of its system calls, or after some time. */
  async function killAmid(role: string): Promise<boolean> {
    const isKilled = random.int(0, 5) > 0;
    const atCall = random.int(0, 3) > 0;
    disk.setRules(isKilled && atCall ? `any * ${random.int(1, calls)} kill` : "");
    const actor = start(role);
    const { child, exited } = actor;
    const isEndless = role === "service";
    if (isEndless) await untilOpen(actor);
    const waitMs = random.int(0, isEndless ? 500 : 1_500);
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

  /** Takes what the actors have noted. */
  function note(): void {
    known.take(notes());
    rmSync(journal, { force: true });
  }

  /** Looks at the file as it was left; a journal is its own, and played back as the error says. */
  async function verify(): Promise<void> {
    let found = await listIds(path);
    const [, sql] = /plays it back .*'([^']+)'$/.exec(String(found)) ?? [];
    if (sql !== undefined) {
      runSql(path, sql);
      count("a journal of its own was refused, and played back");
      found = await listIds(path);
    }
    if (typeof found === "string") throw new Error(found);
    expect(known.problemsOf(found)).toEqual([]);
    // What was read stays.
    known.settle(found);
  }

  async function keepBackup(kind: string): Promise<void> {
    for (const suffix of ["", "-wal", "-shm"]) rmSync(copy + suffix, { force: true });
    if (kind === "copy" ? !(await killAmid(kind)) : (await endOf(kind, start(kind))) !== 0) return;
    const to = `${journal}.${backups.length}`;
    renameSync(copy, to);
    const ids = new Set(idsIn(to));
    backups.push({ kind, path: to, ids });
    expect(known.problemsOf(ids), `a backup by ${kind}`).toEqual([]);
  }

  async function restore(): Promise<void> {
    if (backups.length === 0) return;
    const { kind, path: from, ids } = random.pick(backups);
    const hasJournal = sizeOf(`${path}-journal`) > 0;
    const { ids: found, refused } = await putBackup(from, path);
    if (hasJournal) expect(refused).toBe("journal");
    // Its own WAL, of commits since it was made or restored, brings it up to date.
    const isCurrent =
      !refused && [...found].some((id) => !ids.has(id)) && known.problemsOf(found).length === 0;
    const result = refused
      ? `refused beside a ${refused}`
      : isCurrent
        ? "brought up to date"
        : "opened";
    count(`a backup by ${kind} was ${result}`);
    if (!isCurrent) expect(found, kind).toEqual(ids);
    known.settle(found);
  }

  /** Leaves the journal of another program; mostly, a backup is put beside it. */
  async function rollBack(): Promise<void> {
    await verify();
    await endOf("rollback mode", start("rollback mode"));
    if (random.int(0, 2) > 0) await restore();
  }

  /** Begins with no file; what a kill amid the first start leaves is beside the backup. */
  async function beginAnew(): Promise<void> {
    rmSync(disk.data, { recursive: true });
    mkdirSync(disk.data);
    known = new Known();
    await killAmid(random.pick(["start", "service"]));
    await restore();
  }

  const kinds: (() => Promise<unknown>)[] = [
    () => killAmid("service"),
    () => killAmid("service"),
    () => killAmid("start"),
    async () => known.certain.size > 0 && killAmid("remove"),
    rollBack,
    async () => {
      rmSync(`${journal}.source`, { force: true });
      const ids = (await makeSqlite(disk.folder, "journal.source", 50)).map(idOf);
      for (const id of ids) known.possible.add(id);
      if (await killAmid("copy to")) for (const id of ids) known.certain.add(id);
    },
    async () => {
      const services = [start("service"), start("service")] as const;
      await untilOpen(services[0]);
      await delay(random.int(0, 500));
      services[0].child.kill("SIGKILL");
      await delay(random.int(0, 500));
      services[1].child.kill(random.pick(["SIGKILL", "SIGTERM"]));
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
  known.settle(new Set((await makeSqlite(disk.data, "investors.db", 100)).map(idOf)));
  await killAmid("service");
  await verify();
  await keepBackup(random.pick(["backup", "VACUUM INTO"]));
  await killAmid("service");
  await rollBack();
  await beginAnew();
  for (let step = 0; step < steps; step += 1) {
    const act = random.pick(kinds);
    await act();
    if (act !== restore && random.int(0, 2) === 0) await verify();
  }
  await verify();
  rmSync(disk.folder, { recursive: true });
}
