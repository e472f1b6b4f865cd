import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as delay } from "node:timers/promises";
import { v4, v7 } from "uuid";
import { describe, expect, it } from "vitest";
import { type Investor, InvestorSchema } from "../../../gen/investor/v1/investor_pb.js";
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
import { minutes, timeout } from "./episodes.ts";
import { type FailingDisk, type Files, prepareDisks } from "./failing-disk.ts";
import { contentOf } from "./history.ts";

const struck = "the disk fails";

describe("after a power cut", needs("cc"), () => {
  const createDisk = prepareDisks();

  it("all that was acknowledged or read is there, and nothing else", { timeout }, async () => {
    const random = createRandom(seedOf("power cuts"));
    const until = performance.now() + (minutes || 0.25) * 60_000;
    const count: Record<string, number> = {};
    while (performance.now() < until) {
      const disk = createDisk();
      const records = createRecords();
      const readers: Run[] = [];
      for (const [way, end] of random.shuffle(Object.entries(ends))) {
        if (random.int(0, 2) > 0) {
          const [suffix, action] = [random.pick([".db", "-wal"]), random.pick(["hang", "lost"])];
          await failStart(disk, `sync ${suffix} ${random.int(1, 2)} ${action}`);
          await cutPower(disk, records, readers, random);
        }
        await live(disk, records, readers, random, end);
        await cutPower(disk, records, readers, random);
        count[way] = (count[way] ?? 0) + 1;
      }
      await endAll(readers);
      rmSync(disk.folder, { recursive: true });
    }
    console.log(`power cuts: ${JSON.stringify(count)}`);
  });

  it("a WAL that a sync has lost is written again before a start brings it in", async () => {
    const random = createRandom(seedOf("a lost log"));
    const disk = createDisk();
    const records = createRecords();
    for (let round = 0; round < 4; round += 1) {
      const readers: Run[] = [];
      await live(disk, records, readers, random, loseLog);
      // Beside them, the start would not bring it in.
      await endAll(readers);
      await failStart(disk, "sync .db 1 hang");
      for (let i = 0; i < 60; i += 1) {
        expect(records.problemsOf(disk.afterPowerCut(random))).toEqual([]);
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
    spawnSync(process.execPath, ["-e", script], { cwd: disk.folder, env: disk.env });
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

const ends: Record<string, End> = {
  async "a clean shutdown"({ child }, _, random) {
    await delay(random.int(20, 500));
    child.kill("SIGTERM");
  },

  async "kill -9"({ child }, _, random) {
    await delay(random.int(20, 500));
    child.kill("SIGKILL");
  },

  async "kill -9 while a sync hangs"(service, disk, random) {
    const ofLog = `sync -wal ${random.int(1, 20)} hang`;
    // Beside a reader, the file may not be written at all.
    disk.setRules(random.pick([ofLog, "sync .db 1 hang\nsync -wal 200 hang"]));
    await waitFor(async () => service.output().includes(struck));
    service.child.kill("SIGKILL");
  },

  "a sync of the WAL that loses its pages": loseLog,
};

/** Starts a service whose disk fails meanwhile by a rule, and kills it. */
async function failStart(disk: FailingDisk, rule: string): Promise<void> {
  disk.setRules(rule);
  const starting = run([], disk.env, disk.folder);
  const { output } = starting;
  await waitFor(async () => output().includes(struck) || output().includes("serving"));
  await end(starting, "SIGKILL");
}

type Records = ReturnType<typeof createRecords>;

/** What was asked for, and what was acknowledged or read. */
function createRecords() {
  const requested = new Set<string>();
  /** Ids by content. */
  const promised = new Map<string, string>();
  return {
    /** Creates with a request id that have failed. */
    unanswered: [] as ReturnType<typeof aCreate>[],
    request: (request: ReturnType<typeof aCreate>) => void requested.add(contentOf(request)),
    promise: (investor: Investor) => void promised.set(contentOf(investor), investor.id),
    /** What of it is missing from files, and what is there besides. */
    problemsOf(files: Files): string[] {
      const problems: string[] = [];
      const found = new Map<string, string>();
      for (const row of readRows(files)) {
        const content = JSON.stringify(InvestorSchema.fields.slice(1).map(({ name }) => row[name]));
        if (found.has(content)) problems.push(`doubled: ${content}`);
        if (!requested.has(content)) problems.push(`never requested: ${content}`);
        found.set(content, String(row.id));
      }
      for (const [content, id] of promised) {
        if (found.get(content) !== id.replaceAll("-", "")) problems.push(`lost: ${id}`);
      }
      return problems;
    },
  };
}

/**
 * Looks at what a power cut may leave, and lets one happen, or none.
 *
 * @throws {Error} something is missing, or there that was never requested
 */
async function cutPower(
  disk: FailingDisk,
  records: Records,
  readers: Run[],
  random: Random,
): Promise<void> {
  const images = Array.from({ length: 15 }, () => disk.afterPowerCut(random));
  for (const image of images) expect(records.problemsOf(image)).toEqual([]);
  if (random.int(0, 1) === 0) {
    await endAll(readers);
    const image = random.pick(images);
    disk.restore(isBlank(image) ? new Map() : image);
  }
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
async function endAll(readers: Run[]): Promise<void> {
  for (const reader of readers.splice(0)) await end(reader, "SIGKILL");
}

/**
 * A service takes creates, 32 at once, until it ends; each caller gives up at its first failure. A
 * reader may begin meanwhile, and stays.
 */
async function live(
  disk: FailingDisk,
  records: Records,
  readers: Run[],
  random: Random,
  end: End,
): Promise<void> {
  disk.setRules("");
  const service = await startService(disk.env, disk.folder);
  const client = grpcClient(service);
  for (const investor of await listAll(client)) records.promise(investor);
  const repeats = records.unanswered;
  records.unanswered = [];

  async function create(): Promise<void> {
    for (;;) {
      const request = repeats.pop() ?? aRequest(random);
      records.request(request);
      try {
        records.promise(await client.createInvestor(request));
      } catch {
        if (request.requestId !== undefined) records.unanswered.push(request);
        return;
      }
    }
  }

  /** Reads again and again what comes last. */
  async function read(): Promise<void> {
    for (let pageToken = ""; ; ) {
      const page = await client.listInvestors({ pageSize: 50, pageToken });
      for (const investor of page.investors) records.promise(investor);
      pageToken = page.nextPageToken || pageToken;
    }
  }

  const calls = [read().catch(() => {}), ...Array.from({ length: 32 }, create)];
  if (random.int(0, 2) === 0) readers.push(await startReader(disk));
  await end(service, disk, random);
  await Promise.all(calls);
  await service.exited;
  records.unanswered.push(...repeats);
}

/** Some are large, so that the WAL is brought into the file now and then. */
function aRequest(random: Random) {
  const addressLine2 = random.pick(["", "\u{1F3E0}".repeat(maxTextLength)]);
  const requestId = random.pick([undefined, v4(), v7()]);
  return aCreate({ addressLine1: addressLine2, addressLine2, ...(requestId && { requestId }) });
}

/**
 * Reads what SQLite makes of the files, ids in hex.
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
    const rows = "SELECT *, lower(hex(id)) AS id FROM investors";
    return tables.length === 0 ? [] : db.prepare(rows).all();
  } finally {
    db.close();
    rmSync(folder, { recursive: true });
  }
}
