import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as delay } from "node:timers/promises";
import { describe, expect, it, onTestFinished } from "vitest";
import { openSqliteFile, openSqliteFileToRead } from "../../../src/store/sqlite/file.ts";
import type { Random } from "../../support/random.ts";
import { end, hasEnded, type Run, untilWritten, waitFor } from "../../support/service.ts";
import { needs } from "../../support/tools.ts";
import { pathsOn, startActor } from "./actors.ts";
import { minutes, repeat, timeout } from "./episodes.ts";
import { type FailingDisk, prepareDisks } from "./failing-disk.ts";

/** It takes minutes to see each way at least once; without them, a few are looked at. */
const maxSteps = minutes > 0 ? undefined : 8;
const maxFiles = minutes > 0 ? 16 : 3;

const pageSize = 4_096;

/** A file and its WAL at one instant, as a kill leaves them, and what was known then. */
interface Image {
  kind: string;
  world: number;
  file: Buffer;
  log: Buffer;
  journal: string;
  /** How many commits without a count there were so far, in which other programs write. */
  uncounted: number;
  /** Whether it may be in the middle of a checkpoint, which writes page 1 first, and the count with it. */
  isTorn: boolean;
}

describe("a file and its WAL", needs("cc"), () => {
  const createDisk = prepareDisks();

  it("are opened with all that is in them, or refused", { timeout }, async () => {
    // In memory, where syncs take no time, if there is such a folder.
    const folder = mkdtempSync(join(existsSync("/dev/shm") ? "/dev/shm" : tmpdir(), "pairs-"));
    onTestFinished(() => rmSync(folder, { recursive: true }));
    let others: Image[] = [];
    await repeat("files and logs", async (random, count, world) => {
      const { images, copies } = await live(createDisk(), world, random);
      const contents = new Map<Image, string>();
      for (const image of images) {
        const content = await open(folder, image, image);
        expect(problemsOf(image, content), image.kind).toEqual([]);
        contents.set(image, content ?? "");
        count(image.kind);
      }
      for (const log of images.filter((image) => hasCommit(folder, image))) {
        const torn = Array.from({ length: 4 }, () => tear(log, images, random));
        const files = [...images, ...copies, ...others, ...torn].filter((each) =>
          isCovered(each, log),
        );
        for (const file of random.shuffle(files).slice(0, maxFiles)) {
          const content = await open(folder, file, log);
          const isWhole = content === contents.get(log);
          const result = content === undefined ? "refused" : isWhole ? "opened" : "spoiled";
          count(`${kindOf(file, log, images)}: ${result}`);
          // Beside a reader, a checkpoint leaves page 1 as it is, and with it the count.
          const isNewer = images.indexOf(file) > images.indexOf(log);
          const what = `the file of ${file.kind} beside the WAL of ${log.kind}`;
          if (!isNewer) expect(result, what).not.toBe("spoiled");
        }
      }
      others = images;
    });
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

/** Puts the file of an image beside the WAL of one, in a folder that has nothing else. */
function put(folder: string, { file }: Image, { log }: Image): string {
  for (const name of readdirSync(folder)) rmSync(join(folder, name));
  const path = join(folder, "investors.db");
  writeFileSync(path, file);
  if (log.length > 0) writeFileSync(`${path}-wal`, log);
  return path;
}

/** Whether SQLite finds a commit in the WAL of an image. */
function hasCommit(folder: string, image: Image): boolean {
  if (image.log.length === 0) return false;
  using db = new DatabaseSync(put(folder, image, image), { readOnly: true });
  return Number(db.prepare("PRAGMA wal_checkpoint(NOOP)").get()?.log) > 0;
}

/**
 * Opens the file of an image beside the WAL of one.
 *
 * @returns the result of a check and all records, or undefined if it is refused as it is
 */
async function open(folder: string, from: Image, beside: Image): Promise<string | undefined> {
  const path = put(folder, from, beside);
  const apart = "do not belong together";
  let told = "";
  try {
    openSqliteFileToRead(path).close();
  } catch (error) {
    told = String(error);
  }
  const opened = await openSqliteFile(path, () => {}).catch(String);
  expect(told.includes(apart)).toBe(typeof opened === "string");
  if (typeof opened === "string") {
    expect(opened).toContain(apart);
    expect([read(path), read(`${path}-wal`)]).toEqual([from.file, beside.log]);
    return undefined;
  }
  using db = opened.db;
  const check = db.prepare("PRAGMA integrity_check(1)").get()?.integrity_check;
  const query = "SELECT lower(hex(id)) AS id, first_name, city FROM investors";
  const rows = check === "ok" ? db.prepare(query).all() : [];
  return JSON.stringify([check, ...rows], undefined, 1);
}

/** What is missing of what was acknowledged at an instant, and what is there that nobody asked for. */
function problemsOf({ journal }: Image, content: string | undefined): string[] {
  if (content === undefined) return ["refused"];
  const [check, ...rows] = JSON.parse(content) as [string, ...{ id: string }[]];
  const certain = new Set<string>();
  const possible = new Set<string>();
  for (const line of journal.split("\n")) {
    const id = line.slice(1);
    if (line.startsWith("+")) certain.add(id);
    if (line.startsWith("-")) certain.delete(id);
    if (/^[?-]/.test(line)) possible.add(id);
  }
  const found = new Set(rows.map(({ id }) => id));
  const lost = [...certain].filter((id) => !found.has(id)).map((id) => `lost: ${id}`);
  const unknown = [...found].filter((id) => !certain.has(id) && !possible.has(id));
  const problems = [...lost, ...unknown.map((id) => `unknown: ${id}`)];
  return check === "ok" ? problems : [check, ...problems];
}

/** Has services and other programs use a file, and keeps what it and copies were at many instants. */
async function live(disk: FailingDisk, world: number, random: Random) {
  const { path, journal, copy } = pathsOn(disk);
  const images: Image[] = [];
  const copies: Image[] = [];
  let actors: Run[] = [];
  let uncounted = 0;

  function start(role: string): Run {
    const actor = startActor(disk, role, random);
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

  async function endAll(signal: NodeJS.Signals): Promise<void> {
    await Promise.all(actors.map((actor) => end(actor, signal)));
    actors = [];
  }

  const kill = () => endAll("SIGKILL");

  /** Keeps what a kill at this instant would leave. */
  async function take(kind: string): Promise<void> {
    actors = actors.filter(({ child }) => !hasEnded(child));
    for (const { child } of actors) child.kill("SIGSTOP");
    await waitFor(() => actors.every(({ child }) => isStopped(child.pid ?? 0)));
    const index = read(`${path}-shm`);
    images.push({
      kind,
      world,
      file: read(path),
      log: read(`${path}-wal`),
      journal: read(journal).toString(),
      uncounted,
      // How many frames are brought in, and up to which of them that was begun (wal.c, WalCkptInfo).
      isTorn: index.length > 0 && index.readUInt32LE(96) !== index.readUInt32LE(128),
    });
    for (const { child } of actors) child.kill("SIGCONT");
  }

  /** Keeps a later instant. */
  async function takeLater(kind: string): Promise<void> {
    await delay(random.int(0, 500));
    await take(kind);
  }

  /** Keeps an instant while another program does something. */
  async function act(role: string): Promise<void> {
    const actor = start(role);
    await Promise.race([actor.exited, delay(random.int(100, 500))]);
    await take(role);
    await actor.exited;
  }

  /** The same of one that commits, without a count. */
  async function change(role: string): Promise<void> {
    uncounted += 1;
    await act(role);
    uncounted += 1;
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
    await kill();
    disk.setRules("");
  }

  const steps: Record<string, (name: string) => Promise<void>> = {
    async "any instant"(name) {
      await takeLater(name);
      if (random.int(0, 1) === 0) await kill();
    },
    "a checkpoint": (name) => hang(name, "checkpoint"),
    async "a start"(name) {
      await kill();
      await hang(name, "service");
    },
    async "the end of a start, or of two at once"(name) {
      await kill();
      await startServices(random.int(1, 2));
      await take(name);
    },
    async "a clean shutdown"(name) {
      await endAll("SIGTERM");
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
      await takeLater(name);
    },
    async "a reader"(name) {
      start("reader");
      await takeLater(name);
    },
    async "a full disk"(name) {
      disk.setRules(`write ${random.pick([".db", "-wal"])} ${random.int(1, 20)} ENOSPC`);
      await takeLater(name);
      disk.setRules("");
    },
    "another program": () => change("writer"),
    "a compaction": () => change("VACUUM"),
    "a removal": () => change("remove"),
    "a copy into it": (name) => hang(name, "copy to"),
    async "a copy"() {
      const kind = random.pick(["backup", "VACUUM INTO", "copy"]);
      await act(kind);
      const none = { log: Buffer.of(), journal: "", isTorn: false };
      copies.push({ kind, world, file: read(copy), uncounted, ...none });
      for (const suffix of ["", "-wal", "-shm"]) rmSync(copy + suffix, { force: true });
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
