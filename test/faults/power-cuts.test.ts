import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as delay } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { InvestorSchema } from "../../gen/investor/v1/investor_pb.js";
import { temporaryFolder } from "../support/folder.ts";
import { createRandom, type Random, seedOf } from "../support/random.ts";
import { hasTool } from "../support/tools.ts";
import { compileRecorder, createDisk, type Files, onDisk, readLog } from "./recorded-disk.ts";
import {
  type Evidence,
  type RecordedService,
  recordService,
  UnfinishedError,
} from "./recorded-service.ts";

const minutes = Number(process.env.FAULTS_MINUTES ?? 0.5);
const timeout = minutes * 60_000 + 300_000;

/** What a service and its disk go through. */
type Scenario = (run: RecordedService, random: Random) => Promise<void>;

/** Starts the service again, asks it about what happened, and stores more. */
const restart: Scenario = async (run, random) => {
  const service = await run.start();
  await run.replay(service);
  await run.create(service, random.int(1, 50));
  await run.ended(service, "SIGKILL");
};

const scenarios: Record<string, Scenario> = {
  async "a clean shutdown"(run, random) {
    const service = await run.start();
    await run.create(service, random.int(1, 500));
    await run.ended(service, "SIGTERM");
  },

  async "kill -9 in the middle of creates"(run, random) {
    const service = await run.start("sync * 1 0 slow:2");
    const creating = run.create(service, 1_000);
    await delay(random.int(20, 200));
    await run.ended(service, "SIGKILL");
    await creating;
  },

  async "a sync that hangs, and kill -9"(run, random) {
    const service = await run.start();
    run.setRules(`sync * ${random.int(1, 20)} 0 hang`);
    const creating = run.create(service, 1_000);
    await run.struck();
    await run.ended(service, "SIGKILL");
    await creating;
  },

  async "a sync of the log that loses its pages"(run, random) {
    const service = await run.start();
    await run.create(service, random.int(1, 200));
    // Two, since SQLite passes over that of a checkpoint.
    run.setRules(`sync -wal ${random.int(1, 10)} 2 lost`);
    await run.create(service, 1_000);
    await run.ended(service);
  },

  async "a sync that loses its pages at the start"(run, random) {
    const service = await run.start();
    await run.create(service, random.int(1, 200));
    await run.ended(service, "SIGKILL");
    const next = await run.start(`sync * ${random.int(1, 3)} 1 lost`).catch(() => undefined);
    if (next === undefined) return;
    await run.create(next, 10);
    await run.ended(next, "SIGKILL");
  },
};

describe.runIf(hasTool("cc", ["--version"]))("after a power cut", () => {
  let library: string;
  beforeAll(() => {
    library = compileRecorder();
  });
  afterAll(() => rmSync(dirname(library), { recursive: true }));

  it.each(Object.entries(scenarios))(
    "all that was acknowledged or read is there, and nothing else: %s",
    { timeout },
    async (name, scenario) => {
      const random = createRandom(seedOf(name));
      const end = performance.now() + (minutes * 60_000) / Object.keys(scenarios).length;
      do {
        const run = await record(scenario, random);
        const image = expectNoLoss(run, random, 60);
        const next = recordService(library, random, run.evidence, image);
        await restart(next, random);
        expectNoLoss(next, random, 20);
        run.remove();
        next.remove();
      } while (performance.now() < end);
    },
  );

  it("a loss is found if commits are not synced", () => {
    const folder = realpathSync(temporaryFolder());
    const log = join(folder, "log");
    const rows = 50;
    const script = `
      const db = new (require("node:sqlite").DatabaseSync)("data/investors.db");
      db.exec("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; CREATE TABLE investors (id)");
      for (let id = 0; id < ${rows}; id += 1) db.prepare("INSERT INTO investors VALUES (?)").run(id);
      process.kill(process.pid, "SIGKILL");`;
    mkdirSync(join(folder, "data"));
    const env = { ...onDisk(library, join(folder, "data"), ""), DISK_LOG: log };
    spawnSync(process.execPath, ["-e", script], { cwd: folder, env });
    const random = createRandom(seedOf("commits that are not synced"));
    const disk = createDisk(new Map());
    for (const each of readLog(log)) disk.apply(each);
    const left = Array.from({ length: 50 }, () => readRows(disk.afterPowerCut(random)).length);
    expect(Math.min(...left)).toBeLessThan(rows);
    expect(Math.max(...left)).toBe(rows);
  });

  /** Lets it happen; again if a kill left open what was written. */
  async function record(scenario: Scenario, random: Random, attempts = 10) {
    const run = recordService(library, random);
    try {
      await scenario(run, random);
      await restart(run, random);
      return run;
    } catch (error) {
      if (!(error instanceof UnfinishedError) || attempts === 1) throw error;
      return record(scenario, random, attempts - 1);
    }
  }
});

/** What a power cut has left. */
interface Remains {
  files: Files;
  /** The size of the log up to the power cut. */
  position: number;
}

/**
 * Cuts the power at `count` points of a run: anywhere, just after a promise, and during its last
 * start.
 *
 * @returns one of the images
 * @throws {Error} what is wrong with an image
 */
function expectNoLoss(run: RecordedService, random: Random, count: number): Remains {
  const { log, initial, promised } = run.evidence;
  const { began, ready } = run.lastStart();
  const records = readLog(log);
  const newest = records.length - 1;
  const indexAt = (position: number) => {
    const index = records.findIndex(({ end }) => end >= position);
    return index < 0 ? newest : index;
  };
  const points = Array.from({ length: count }, (_, i) => {
    if (i % 3 === 0) return random.int(indexAt(began), indexAt(ready));
    if (i % 3 === 1 && promised.length > 0) return indexAt(random.pick(promised).position);
    return random.int(0, newest);
  }).sort((a, b) => a - b);
  const disk = createDisk(initial);
  let applied = 0;
  const images = points.map((point): Remains => {
    for (const each of records.slice(applied, point + 1)) disk.apply(each);
    applied = Math.max(applied, point + 1);
    const files = disk.afterPowerCut(random);
    const position = records[point]?.end ?? 0;
    const problems = problemsOf(run.evidence, files, position);
    if (problems.length > 0) throw new Error(`at ${position}: ${problems.slice(0, 5)}`);
    return { files, position };
  });
  return random.pick(images);
}

function problemsOf({ requested, promised }: Evidence, files: Files, position: number): string[] {
  const problems: string[] = [];
  const found = new Map<string, string>();
  for (const row of readRows(files)) {
    const id = uuidOf(row.id as Uint8Array);
    const content = JSON.stringify(InvestorSchema.fields.slice(1).map(({ name }) => row[name]));
    if (found.has(content)) problems.push(`${id} is doubled`);
    if (!requested.has(content)) problems.push(`${id} was never requested`);
    found.set(content, id);
  }
  for (const { id, content, position: promisedAt } of promised) {
    const there = found.get(content);
    if (there === undefined && promisedAt <= position) problems.push(`${id} is lost`);
    if (there !== undefined && there !== id) problems.push(`${id} has another id`);
  }
  return problems;
}

/**
 * Reads what SQLite makes of the files.
 *
 * @throws {Error} it takes them for damaged
 */
function readRows(files: Files): Record<string, unknown>[] {
  const folder = mkdtempSync(join(tmpdir(), "investor-records-cut-"));
  for (const [name, data] of files) writeFileSync(join(folder, name), data);
  const db = new DatabaseSync(join(folder, "investors.db"));
  try {
    const check = db.prepare("PRAGMA integrity_check").get()?.integrity_check;
    if (check !== "ok") throw new Error(`it is damaged: ${check}`);
    const tables = db.prepare("SELECT name FROM sqlite_schema WHERE name = 'investors'").all();
    return tables.length === 0 ? [] : db.prepare("SELECT * FROM investors").all();
  } finally {
    db.close();
    rmSync(folder, { recursive: true });
  }
}

function uuidOf(bytes: Uint8Array): string {
  const hex = Buffer.from(bytes).toString("hex");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}
