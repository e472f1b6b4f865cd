import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as delay } from "node:timers/promises";
import { stringify, v4, v7 } from "uuid";
import { describe, expect, it } from "vitest";
import { InvestorSchema } from "../../../gen/investor/v1/investor_pb.js";
import { maxTextLength } from "../../../src/investor/investor.ts";
import { listAll } from "../../support/pages.ts";
import { createRandom, type Random, seedOf } from "../../support/random.ts";
import { aCreate } from "../../support/records.ts";
import {
  end,
  grpcClient,
  type Run,
  run,
  type Service,
  startService,
  untilWritten,
  waitFor,
} from "../../support/service.ts";
import { needs } from "../../support/tools.ts";
import { sendCreate } from "./callers.ts";
import { repeat, timeout } from "./episodes.ts";
import { type FailingDisk, type Files, prepareDisks } from "./failing-disk.ts";
import { type CreateRequest, History } from "./history.ts";

const struck = "the disk fails";

/** A disk, what is known of the records on it, and who uses its file. */
interface World {
  readonly disk: FailingDisk;
  readonly random: Random;
  readonly history: History;
  /** Creates with a request id that have failed. */
  readonly unanswered: CreateRequest[];
  /** Processes that hold a snapshot of the file. */
  readonly readers: Run[];
}

describe("after a power cut", needs("cc"), () => {
  const createDisk = prepareDisks();

  const createWorld = (random: Random): World => {
    const disk = createDisk();
    return { disk, random, history: new History(), unanswered: [], readers: [] };
  };

  it("all that was acknowledged or read is there, and nothing else", { timeout }, async () => {
    const cutOften = async (random: Random) => {
      const world = createWorld(random);
      for (const end of random.shuffle(ends)) {
        if (random.int(0, 2) > 0) {
          const [suffix, action] = [random.pick([".db", "-wal"]), random.pick(["hang", "lost"])];
          await failStart(world, `sync ${suffix} ${random.int(1, 2)} ${action}`);
          await cutPower(world);
        }
        await live(world, end);
        await cutPower(world);
      }
      await endReaders(world);
      rmSync(world.disk.folder, { recursive: true });
    };
    await repeat("power cuts", cutOften, 0.25);
  });

  it("a WAL that a sync has lost is written again before a start brings it in", async () => {
    const random = createRandom(seedOf("a lost log"));
    const world = createWorld(random);
    for (let round = 0; round < 4; round += 1) {
      await live(world, loseLog);
      // Beside them, the start would not bring it in.
      await endReaders(world);
      await failStart(world, "sync .db 1 hang");
      for (let i = 0; i < 60; i += 1) expectSound(world, world.disk.afterPowerCut(random));
    }
  });

  it("no record is left that was removed, in the file or its WAL, beside a service or not", async () => {
    const random = createRandom(seedOf("removals and power cuts"));
    for (const isStopped of [true, false]) {
      const { durableEnv, folder, afterPowerCut } = createDisk();
      const service = await startService(durableEnv, folder);
      const client = grpcClient(service);
      const { id } = await client.createInvestor(aCreate());
      // Each leaves a version of its page in the WAL.
      for (let i = 0; i < 20; i += 1) await client.createInvestor(aCreate());
      if (isStopped) await end(service);
      const args = ["remove", "sqlite:data/investors.db", id];
      const { exited, output } = run(args, durableEnv, folder);
      expect(await exited, output()).toBe(0);
      const bytes = Buffer.from(id.replaceAll("-", ""), "hex");
      for (let i = 0; i < 30; i += 1) {
        for (const [name, content] of afterPowerCut(random))
          expect(content.includes(bytes), name).toBe(false);
      }
    }
  });

  it("a loss is found if commits are not synced", () => {
    const disk = createDisk();
    const rows = 50;
    const script = `
      const db = new (require("node:sqlite").DatabaseSync)("data/investors.db");
      db.exec("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; CREATE TABLE investors (id)");
      for (let id = 0; id < ${rows}; id += 1) db.prepare("INSERT INTO investors VALUES (?)").run(id);
      process.kill(process.pid, "SIGKILL");`;
    spawnSync(process.execPath, ["-e", script], { cwd: disk.folder, env: disk.durableEnv });
    const random = createRandom(seedOf("commits that are not synced"));
    const left = Array.from({ length: 50 }, () => readRows(disk.afterPowerCut(random)).length);
    expect(Math.min(...left)).toBeLessThan(rows);
    expect(Math.max(...left)).toBe(rows);
  });
});

/** How a service ends that takes creates. */
type End = (service: Service, disk: FailingDisk, random: Random) => Promise<void>;

const loseLog: End = async (service, disk, random) => {
  // The log has no earlier version of the pages that its first commits change.
  disk.setRules(`sync -wal ${random.int(1, random.pick([3, 20]))} lost`);
  await waitFor(async () => service.output().includes(struck));
  expect(await service.exited).toBe(1);
};

const killAmidSync: End = async (service, disk, random) => {
  const ofLog = `sync -wal ${random.int(1, 20)} hang`;
  // Beside a reader, the file may not be written at all.
  disk.setRules(random.pick([ofLog, "sync .db 1 hang\nsync -wal 200 hang"]));
  await waitFor(async () => service.output().includes(struck));
  service.child.kill("SIGKILL");
};

function endBy(signal: NodeJS.Signals): End {
  return async ({ child }, _, random) => {
    await delay(random.int(20, 500));
    child.kill(signal);
  };
}

const ends = [endBy("SIGTERM"), endBy("SIGKILL"), killAmidSync, loseLog];

/** Starts a service whose disk fails meanwhile by a rule, and kills it. */
async function failStart({ disk }: World, rule: string): Promise<void> {
  disk.setRules(rule);
  const starting = run([], disk.durableEnv, disk.folder);
  const { output } = starting;
  await waitFor(async () => output().includes(struck) || output().includes("serving"));
  await end(starting, "SIGKILL");
}

/**
 * Looks at what a power cut may leave, and lets one happen, or none.
 *
 * @throws {Error} something is missing, or there that was never requested
 */
async function cutPower(world: World): Promise<void> {
  const { disk, random } = world;
  const images = Array.from({ length: 15 }, () => disk.afterPowerCut(random));
  for (const image of images) expectSound(world, image);
  if (random.int(0, 1) === 0) {
    await endReaders(world);
    const image = random.pick(images);
    disk.restore(isBlank(image) ? new Map() : image);
  }
}

/** @throws {Error} what of the files contradicts what is known */
function expectSound({ history }: World, files: Files): void {
  const fork = history.fork();
  const walk = fork.walk("after a power cut");
  for (const row of readRows(files)) {
    const values = InvestorSchema.fields.map(({ name, localName }) => [localName, row[name]]);
    const id = stringify(row.id as Uint8Array);
    walk.saw({ ...Object.fromEntries(values), id });
  }
  walk.ended();
  fork.expectSound();
}

/** Whether there is just the first page of a new file, not yet written: a start refuses it. */
const isBlank = (files: Files) => files.get("investors.db")?.equals(Buffer.alloc(4_096));

/** Starts a process that holds a snapshot of the file, also when the service has ended. */
async function startReader({ folder }: FailingDisk): Promise<Run> {
  const script = `const db = new (require("node:sqlite").DatabaseSync)("data/investors.db");
    db.exec("BEGIN; SELECT count(*) FROM investors");
    console.log("reading");
    setInterval(() => {}, 1_000);`;
  const reader = run([script], {}, folder, "-e");
  await untilWritten(reader, "reading");
  return reader;
}

/** Kills readers: one that closes the file would bring the WAL in, past the disk that fails. */
async function endReaders({ readers }: World): Promise<void> {
  for (const reader of readers.splice(0)) await end(reader, "SIGKILL");
}

/**
 * A service takes creates, 32 at once, until it ends; each caller gives up at its first failure. A
 * reader may begin meanwhile, and stays.
 */
async function live({ disk, random, history, unanswered, readers }: World, end: End) {
  disk.setRules("");
  const service = await startService(disk.durableEnv, disk.folder);
  const client = grpcClient(service);
  const walk = history.walk("at the start");
  for (const investor of await listAll(client)) walk.saw(investor);
  walk.ended();

  async function create(): Promise<void> {
    let request: CreateRequest;
    do request = unanswered.pop() ?? aRequest(random);
    while ((await sendCreate(history, client, request)) === undefined);
    if (request.requestId !== undefined) unanswered.push(request);
  }

  /** Reads again and again what comes last. */
  async function read(): Promise<void> {
    for (let pageToken = ""; ; ) {
      const page = await client.listInvestors({ pageSize: 50, pageToken });
      const walk = history.walk("page");
      for (const investor of page.investors) walk.saw(investor);
      pageToken = page.nextPageToken || pageToken;
    }
  }

  const calls = [read().catch(() => {}), ...Array.from({ length: 32 }, create)];
  if (random.int(0, 2) === 0) readers.push(await startReader(disk));
  await end(service, disk, random);
  await Promise.all(calls);
  await service.exited;
  history.expectSound();
}

/** Some are large, so that the WAL is brought into the file now and then. */
function aRequest(random: Random) {
  const addressLine2 = random.pick(["", "\u{1F3E0}".repeat(maxTextLength)]);
  const requestId = random.pick([undefined, v4(), v7()]);
  return aCreate({ addressLine1: addressLine2, addressLine2, ...(requestId && { requestId }) });
}

/**
 * Reads what SQLite makes of the files.
 *
 * @throws {Error} it takes them for damaged
 */
function readRows(files: Files): Record<string, unknown>[] {
  if (isBlank(files)) return [];
  const folder = mkdtempSync(join(tmpdir(), "investor-records-cut-"));
  for (const [name, data] of files) writeFileSync(join(folder, name), data);
  const db = new DatabaseSync(join(folder, "investors.db"));
  try {
    const check = db.prepare("PRAGMA integrity_check").get()?.integrity_check;
    if (check !== "ok") throw new Error(`it is damaged: ${check}`);
    const tables = db.prepare("SELECT name FROM sqlite_schema WHERE name = 'investors'").all();
    return tables.length === 0 ? [] : db.prepare("SELECT * FROM investors ORDER BY id").all();
  } finally {
    db.close();
    rmSync(folder, { recursive: true });
  }
}
