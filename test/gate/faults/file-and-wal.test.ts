import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as delay } from "node:timers/promises";
import { describe, expect, it, onTestFinished } from "vitest";
import { openSqliteFile, openSqliteFileToRead } from "../../../src/store/sqlite/file.ts";
import { copyHere, runSql } from "../../support/copying.ts";
import { createRandom, type Random, seedOf } from "../../support/random.ts";
import { hasEnded, type Run, run, untilWritten, waitFor } from "../../support/service.ts";
import { needs } from "../../support/tools.ts";
import { minutes, timeout } from "./episodes.ts";
import { type FailingDisk, prepareDisks } from "./failing-disk.ts";

/** It takes minutes to see each way at least once; without them, a few are looked at. */
const maxSteps = minutes > 0 ? undefined : 5;
const maxFiles = minutes > 0 ? 16 : 3;

const pageSize = 4_096;

/** Plays a journal back, and deletes it. */
const playBack = "PRAGMA journal_mode = PERSIST; PRAGMA journal_mode = DELETE";

/** A file and its WAL at one instant, as a kill leaves them, and what was known then. */
interface Image {
  kind: string;
  world: number;
  file: Buffer;
  log: Buffer;
  /** What another program in rollback mode has left of its journal. */
  rollback: Buffer;
  journal: string;
  /** How many commits without a count there were so far, in which other programs write. */
  uncounted: number;
  /** Whether it may be in the middle of a checkpoint, which writes page 1 first, and the count with it. */
  isTorn: boolean;
}

describe("a file and its WAL", needs("cc"), () => {
  const createDisk = prepareDisks();

  it("are opened with all that is in them, or refused", { timeout }, async () => {
    const random = createRandom(seedOf("file and log"));
    // In memory, where syncs take no time, if there is such a folder.
    const folder = mkdtempSync(join(existsSync("/dev/shm") ? "/dev/shm" : tmpdir(), "pairs-"));
    onTestFinished(() => rmSync(folder, { recursive: true }));
    const until = performance.now() + minutes * 60_000;
    const counts: Record<string, number> = {};
    const count = (name: string) => {
      counts[name] = (counts[name] ?? 0) + 1;
    };
    let others: Image[] = [];
    for (let world = 0; world === 0 || performance.now() < until; world += 1) {
      const { images, copies } = await live(createDisk(), world, random);
      const contents = new Map<Image, string>();
      for (const image of images) {
        const isRefused = image.rollback.length > 0;
        if (isRefused) {
          for (const file of random.shuffle([...images, ...copies, ...others]).slice(0, maxFiles)) {
            expect(await open(folder, file, image), "beside a journal").toBeUndefined();
            count(`${kindOf(file, image, images)} beside a journal: refused`);
          }
        }
        const content = await open(folder, image, image, isRefused);
        expect(problemsOf(image, content), image.kind).toEqual([]);
        contents.set(image, content ?? "");
        count(image.kind);
      }
      for (const log of images.filter((image) => hasCommit(folder, image))) {
        const torn = Array.from({ length: 4 }, () => tear(log, images, random));
        const files = [...images, ...copies, ...others, ...torn];
        for (const file of random
          .shuffle(files.filter((each) => isCovered(each, log)))
          .slice(0, maxFiles)) {
          const content = await open(folder, file, log);
          const isWhole = content === contents.get(log);
          // Beside a reader, a checkpoint leaves page 1 as it is, and with it the count.
          const isNewer = images.indexOf(file) > images.indexOf(log);
          const result = content === undefined ? "refused" : isWhole ? "opened" : "spoiled";
          count(`${kindOf(file, log, images)}: ${result}`);
          if (isNewer) continue;
          expect(result, `the file of ${file.kind} beside the WAL of ${log.kind}`).not.toBe(
            "spoiled",
          );
        }
      }
      others = images;
    }
    console.log(`files and logs: ${JSON.stringify(counts, undefined, 1)}`);
  });
});

/** What a file is to a WAL. */
function kindOf(file: Image, log: Image, images: Image[]): string {
  if (file.world !== log.world) return "the file of another service";
  const age = images.indexOf(file) - images.indexOf(log);
  if (!images.includes(file)) return file.kind;
  return age === 0 ? "its own file" : age < 0 ? "an older file" : "a newer file";
}

/** What is another each time that a WAL is begun anew. */
const saltOf = ({ log }: Image) => log.subarray(16, 24);

/** Whether the counts tell if a file and a WAL belong together. */
function isCovered(file: Image, log: Image): boolean {
  const isSame = file.world === log.world;
  // What the file lacks of a checkpoint is in the WAL of that time alone.
  if (file.isTorn && !saltOf(file).equals(saltOf(log))) return false;
  return !isSame || file.uncounted === log.uncounted;
}

/** What a slow copy that ends before that of a WAL makes of a file: its parts are of two instants. */
function tear(log: Image, images: Image[], random: Random): Image {
  const earlier = images.slice(0, images.indexOf(log) + 1);
  const alike = earlier.filter((each) => isCovered(each, log));
  const [first = log, last = log] = [random.int(0, alike.length), random.int(0, alike.length)]
    .toSorted((a, b) => a - b)
    .map((index) => alike[index]);
  const at = pageSize * random.int(0, Math.floor(first.file.length / pageSize));
  const file = Buffer.concat([first.file.subarray(0, at), last.file.subarray(at)]);
  return { ...first, kind: "a slow copy", file };
}

/** Puts the file of an image beside the WAL of one, in a folder of their own. */
function put(parent: string, { file }: Image, { log, rollback }: Image): string {
  const path = join(mkdtempSync(join(parent, "pair-")), "investors.db");
  writeFileSync(path, file);
  if (log.length > 0) writeFileSync(`${path}-wal`, log);
  if (rollback.length > 0) writeFileSync(`${path}-journal`, rollback);
  return path;
}

/** Whether SQLite finds a commit in the WAL of an image. */
function hasCommit(parent: string, image: Image): boolean {
  if (image.log.length === 0) return false;
  const path = put(parent, image, image);
  const db = new DatabaseSync(path, { readOnly: true });
  const frames = db.prepare("PRAGMA wal_checkpoint(NOOP)").get()?.log;
  db.close();
  rmSync(dirname(path), { recursive: true });
  return Number(frames) > 0;
}

/**
 * Opens the file of an image beside the WAL or the journal of one.
 *
 * @param isPlayedBack whether SQLite plays the journal back before
 * @returns the result of a check and all records, or undefined if it is refused as it is
 */
async function open(
  parent: string,
  from: Image,
  beside: Image,
  isPlayedBack = false,
): Promise<string | undefined> {
  const path = put(parent, from, beside);
  if (isPlayedBack) runSql(path, playBack);
  const hasJournal = beside.rollback.length > 0 && !isPlayedBack;
  const apart = hasJournal ? "-journal is there" : "do not belong together";
  let told = "";
  try {
    openSqliteFileToRead(path).close();
  } catch (error) {
    told = String(error);
  }
  const db = await openSqliteFile(path, () => {}).then(
    (opened) => opened.db,
    (error) => void expect(String(error)).toContain(apart),
  );
  expect(told.includes(apart)).toBe(db === undefined);
  if (!db) expect([read(path), read(`${path}-wal`)]).toEqual([from.file, beside.log]);
  const check = db && String(db.prepare("PRAGMA integrity_check(1)").get()?.integrity_check);
  const query = "SELECT lower(hex(id)) AS id, first_name, city FROM investors";
  const rows = check === "ok" ? db?.prepare(query).all() : [];
  db?.close();
  rmSync(dirname(path), { recursive: true });
  return check && JSON.stringify([check, ...(rows ?? [])], undefined, 1);
}

/** What is missing of what was acknowledged at an instant, and what is there that nobody asked for. */
function problemsOf({ journal }: Image, content: string | undefined): string[] {
  if (content === undefined) return ["refused"];
  const [check, ...rows] = JSON.parse(content) as [string, ...{ id: string }[]];
  const found = new Set(rows.map(({ id }) => id));
  const marks = new Map<string, string>();
  for (const line of journal.split("\n")) {
    const id = line.slice(1).replaceAll("-", "");
    marks.set(id, (marks.get(id) ?? "") + line[0]);
  }
  const lost = [...marks].filter(([id, mark]) => mark === "?+" && !found.has(id));
  const unknown = [...found].filter((id) => !marks.has(id));
  return [...(check === "ok" ? [] : [check]), ...lost.map(([id]) => `lost: ${id}`), ...unknown];
}

/** Has services and other programs use a file, and keeps what it and copies were at many instants. */
async function live(disk: FailingDisk, world: number, random: Random) {
  // What syncs bring to the disk is not looked at.
  const { DISK_DURABLE: _, ...env } = disk.env;
  const path = join(disk.folder, "data/investors.db");
  const journal = join(disk.folder, "journal");
  const copy = `${journal}.copy`;
  const images: Image[] = [];
  const copies: Image[] = [];
  let actors: Run[] = [];
  let uncounted = 0;

  function start(role: string): Run {
    const args = [role, path, journal, String(random.int(0, 2 ** 31 - 1))];
    const actor = run(args, env, disk.folder, resolve(import.meta.dirname, "actor.ts"));
    actors.push(actor);
    return actor;
  }

  const countOpened = () => read(journal).toString().split("open").length;

  async function startServices(count = 1): Promise<void> {
    const before = countOpened();
    const started = Array.from({ length: count }, () => start("service"));
    await waitFor(() => {
      const failed = started.find(({ child }) => child.exitCode !== null);
      if (failed) throw new Error(`a start failed: ${failed.output()}`);
      return countOpened() === before + count;
    });
  }

  async function end(signal: NodeJS.Signals): Promise<void> {
    for (const { child } of actors) child.kill(signal);
    await Promise.all(actors.map(({ exited }) => exited));
    actors = [];
  }

  /** Keeps what a kill at this instant would leave. */
  async function take(kind: string): Promise<void> {
    actors = actors.filter(({ child }) => !hasEnded(child));
    for (const { child } of actors) child.kill("SIGSTOP");
    await waitFor(() => actors.every(({ child }) => isStopped(child.pid ?? 0)));
    const [file, log] = [read(path), read(`${path}-wal`)];
    const index = read(`${path}-shm`);
    // How many frames are brought in, and up to which of them that was begun (wal.c, WalCkptInfo).
    const isTorn = index.length > 0 && index.readUInt32LE(96) !== index.readUInt32LE(128);
    const told = read(journal).toString();
    const rollback = read(`${path}-journal`);
    images.push({ kind, world, file, log, rollback, journal: told, uncounted, isTorn });
    for (const { child } of actors) child.kill("SIGCONT");
  }

  /** Keeps an instant while another program does something, and the copy that it makes. */
  async function act(role: string): Promise<void> {
    const makesCopy = ["backup", "VACUUM INTO"].includes(role);
    uncounted += makesCopy ? 0 : 1;
    const actor = start(role);
    await Promise.race([actor.exited, delay(random.int(100, 500))]);
    await take(role);
    await actor.exited;
    uncounted += makesCopy ? 0 : 1;
    if (makesCopy) keepCopy(role);
  }

  function keepCopy(kind: string): void {
    const file = read(copy);
    const none = { log: Buffer.of(), rollback: Buffer.of(), journal: "", isTorn: false };
    copies.push({ kind, world, file, uncounted, ...none });
    rmSync(copy, { force: true });
  }

  /** Keeps an instant at which the disk hangs, or one after what an actor did, if it did not hang. */
  async function hang(kind: string, role: string): Promise<void> {
    const operation = random.pick(["write", "sync", "truncate"]);
    disk.setRules(`${operation} ${random.pick([".db", "-wal"])} ${random.int(1, 8)} hang`);
    const before = countOpened();
    const actor = start(role);
    const hung = actors.map((each) => untilWritten(each, "the disk fails"));
    let isOver = false;
    const opened = waitFor(() => isOver || countOpened() > before);
    await Promise.race([actor.exited, ...hung, opened]);
    isOver = true;
    await take(kind);
    await end("SIGKILL");
    disk.setRules("");
  }

  const kill = () => end("SIGKILL");
  const pass = () => delay(random.int(0, 500));
  const steps: Record<string, (name: string) => unknown> = {
    "any instant": (name) => pass().then(() => take(name)),
    "kill -9": (name) =>
      pass()
        .then(() => take(name))
        .then(kill),
    "a checkpoint": (name) => hang(name, "checkpoint"),
    "a start": (name) => kill().then(() => hang(name, "service")),
    "the end of a start": (name) =>
      kill()
        .then(() => startServices())
        .then(() => take(name)),
    "two starts at once": (name) =>
      kill()
        .then(() => startServices(2))
        .then(() => take(name)),
    async "a clean shutdown"(name) {
      await end("SIGTERM");
      await take(name);
      await startServices();
      await take(`${name} and a start`);
    },
    async "a start during a clean shutdown"(name) {
      for (const { child } of actors) child.kill("SIGTERM");
      await startServices();
      await take(name);
    },
    async "a second service"(name) {
      await startServices();
      await pass();
      await take(name);
    },
    async "a reader"(name) {
      start("reader");
      await pass();
      await take(name);
    },
    async "a full disk"(name) {
      disk.setRules(`write ${random.pick([".db", "-wal"])} ${random.int(1, 20)} ENOSPC`);
      await pass();
      await take(name);
      disk.setRules("");
    },
    "another program": () => act("writer"),
    async "another program in rollback mode"(name) {
      await kill();
      uncounted += 1;
      await start("rollback mode").exited;
      await take(name);
      runSql(path, playBack);
      uncounted += 1;
    },
    "a compaction": () => act("VACUUM"),
    "a removal": () => act("remove"),
    "a copy by another program": () => act(random.pick(["backup", "VACUUM INTO"])),
    async copy(name) {
      await copyHere([`sqlite:${path}`, `sqlite:${copy}`], { folder: disk.folder });
      keepCopy(name);
    },
  };
  await hang("the first start", "service");
  await kill();
  for (const [name, step] of random.shuffle(Object.entries(steps)).slice(0, maxSteps)) {
    if (actors.length === 0) await startServices();
    await step(name);
  }
  await kill();
  rmSync(disk.folder, { recursive: true });
  return { images, copies };
}

const read = (path: string) => (existsSync(path) ? readFileSync(path) : Buffer.of());

/** Whether every thread of a process is stopped, or it has ended. */
function isStopped(pid: number): boolean {
  const threads = `/proc/${pid}/task`;
  try {
    const states = readdirSync(threads).map((id) => readFileSync(`${threads}/${id}/stat`, "utf8"));
    return states.every((state) => /\) [TZX] /.test(state));
  } catch {
    // One of them has just ended.
    return !existsSync(threads);
  }
}
