import { rmSync } from "node:fs";
import { dirname } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { createRandom, type Random, seedOf } from "../support/random.ts";
import { hasTool } from "../support/tools.ts";
import { cutPower, keep, loadKept, type Remains } from "./power-cuts.ts";
import {
  compileRecorder,
  type Evidence,
  type RecordedService,
  recordService,
  UnfinishedError,
} from "./recorded-service.ts";

const minutes = Number(process.env.FAULTS_MINUTES ?? 0);
const timeout = minutes * 60_000 + 600_000;

/** What a service and its disk go through. */
type Scenario = (run: RecordedService, random: Random) => Promise<void>;

/** Starts the service again, asks it about what happened, and stores more. */
const restart: Scenario = async (run, random) => {
  const service = await run.start();
  await run.replay(service);
  await run.create(service, random.int(1, 50));
  await run.ended(service, "SIGKILL");
};

const cleanShutdown: Scenario = async (run, random) => {
  const service = await run.start();
  await run.create(service, random.int(1, 200));
  await run.ended(service, "SIGTERM");
  await restart(run, random);
};

const kill: Scenario = async (run, random) => {
  const service = await run.start("sync * 1 0 slow:2");
  const creating = run.create(service, 1_000);
  await delay(random.int(20, 200));
  await run.ended(service, "SIGKILL");
  await creating;
  await restart(run, random);
};

const hungSync: Scenario = async (run, random) => {
  const service = await run.start();
  run.setRules(`sync * ${random.int(1, 20)} 0 hang`);
  const creating = run.create(service, 1_000);
  await run.struck();
  await run.ended(service, "SIGKILL");
  await creating;
  await restart(run, random);
};

const lostSync: Scenario = async (run, random) => {
  const service = await run.start();
  await run.create(service, random.int(1, 200));
  // Two, since SQLite passes over that of a checkpoint.
  run.setRules(`sync -wal ${random.int(1, 10)} 2 lost`);
  await run.create(service, 1_000);
  await run.ended(service);
  await restart(run, random);
};

const lostSyncAtStart: Scenario = async (run, random) => {
  const service = await run.start();
  await run.create(service, random.int(1, 200));
  await run.ended(service, "SIGKILL");
  const next = await run.start(`sync * ${random.int(1, 3)} 1 lost`).catch(() => undefined);
  if (next !== undefined) {
    await run.create(next, 10);
    await run.ended(next, "SIGKILL");
  }
  await restart(run, random);
};

const lostSyncOnce: Scenario = async (run) => {
  const service = await run.start();
  await run.create(service, 3);
  run.setRules("sync -wal 1 1 lost");
  await run.create(service, 1);
  await run.ended(service);
  const next = await run.start();
  await run.replay(next);
  await run.create(next, 3);
  await run.ended(next, "SIGKILL");
};

const lostSyncOfManyPages: Scenario = async (run, random) => {
  const service = await run.start();
  await run.create(service, 300);
  run.setRules(`sync -wal ${random.int(1, 12)} 2 lost`);
  await run.create(service, 1_000);
  await run.ended(service);
  const next = await run.start();
  await run.create(next, 50);
  await run.ended(next, "SIGKILL");
};

const scenarios = {
  "a clean shutdown": cleanShutdown,
  "kill -9 in the middle of creates": kill,
  "a sync that hangs, and kill -9": hungSync,
  "a sync of the log that loses its pages": lostSync,
  "a sync that fails at the start": lostSyncAtStart,
};

/** Has the log brought in all the time. */
const manyCheckpoints = {
  "synchronous = FULL": "synchronous = FULL; PRAGMA wal_autocheckpoint = 10",
};

/** Opens the file with its log as it is, and does not miss the pages that are in that. */
const _withoutCheckpoint = {
  writeSync: "",
  "PRAGMA wal_checkpoint(TRUNCATE)": "SELECT 0 AS busy",
  "PRAGMA page_count": "SELECT 0 AS page_count",
};

/** The mutants of the service that lose records. */
const mutants: [string, Scenario, Record<string, string>][] = [
  ["that does not sync its commits", kill, { "synchronous = FULL": "synchronous = NORMAL" }],
];

describe.runIf(hasTool("cc", ["--version"]))("after a power cut", () => {
  let library: string;
  beforeAll(() => {
    library = compileRecorder();
  });
  afterAll(() => rmSync(dirname(library), { recursive: true }));

  /** Lets it happen; again if a kill left open what was written. */
  async function record(scenario: Scenario, random: Random, sql = {}): Promise<RecordedService> {
    const run = recordService(library, random, sql);
    try {
      await scenario(run, random);
      return run;
    } catch (error) {
      if (!(error instanceof UnfinishedError)) throw error;
      return record(scenario, random, sql);
    }
  }

  it.each(Object.entries(scenarios))(
    "all that was acknowledged or read is there, and nothing else: %s",
    { timeout },
    async (name, scenario) => {
      const random = createRandom(seedOf(name));
      const end = performance.now() + (minutes * 60_000) / Object.keys(scenarios).length;
      for (let round = 0; round < 2 || performance.now() < end; round += 1) {
        const run = await record(scenario, random, round % 2 === 0 ? manyCheckpoints : {});
        const image = expectNoLoss(run.evidence, random, 60);
        const next = recordService(library, random, {}, run.evidence, image);
        await restart(next, random);
        expectNoLoss(next.evidence, random, 20);
        run.remove();
        next.remove();
      }
    },
  );

  it("the file is whole if the power fails while a log that had lost pages is brought in", {
    timeout,
  }, async () => {
    const random = createRandom(seedOf("power cuts in recovery"));
    const end = performance.now() + minutes * 60_000;
    for (let round = 0; round < 6 || performance.now() < end; round += 1) {
      const run = await record(lostSyncOfManyPages, random, manyCheckpoints);
      expectNoLoss(run.evidence, random, 60, run.lastStart());
      run.remove();
    }
  });

  it("a hundred times a sync fails and loses its pages, and nothing is lost", {
    timeout,
  }, async () => {
    const random = createRandom(seedOf("a hundred lost syncs"));
    let left = 100;
    let losses = 0;
    const repeat = async () => {
      for (; left > 0; left -= 1) {
        const run = await record(lostSyncOnce, random);
        const images = [...cutPower(run.evidence, random, 5, Infinity)];
        if (images.some(({ problems }) => problems.length > 0)) losses += 1;
        run.remove();
      }
    };
    await Promise.all([repeat(), repeat(), repeat()]);
    expect(losses, "runs that lost records").toBe(0);
  });

  it.each(mutants)("a loss is found in a service %s", { timeout }, async (name, scenario, sql) => {
    const random = createRandom(seedOf(name));
    const run = await record(scenario, random, sql);
    const images = [...cutPower(run.evidence, random, 200)];
    const bad = images.findIndex(({ problems }) => problems.length > 0);
    expect(bad, "images without a loss before the first with one").toBeGreaterThanOrEqual(0);
  });

  it.runIf(process.env.POWER_CUT)("a kept log shows no loss", () => {
    const { evidence, seed, count, from } = loadKept(process.env.POWER_CUT ?? "");
    const images = [...cutPower(evidence, createRandom(seed), count, from)];
    expect(
      images.flatMap(({ position, problems }) => problems.map((text) => ({ position, text }))),
    ).toEqual([]);
  });
});

/** Cuts the power at some points; one of the images. A loss keeps the log. */
function expectNoLoss(evidence: Evidence, random: Random, count: number, from = 0): Remains {
  const seed = random.int(0, 2 ** 31 - 1);
  const images = [...cutPower(evidence, createRandom(seed), count, from)];
  const bad = images.filter(({ problems }) => problems.length > 0);
  if (bad.length === 0) return random.pick(images);
  const folder = keep({ evidence, seed, count, from });
  throw new Error(
    `${bad.length} of ${count} images: at ${bad[0]?.position} ${bad[0]?.problems.slice(0, 3)}
check the log again: POWER_CUT=${folder} npx vitest run test/faults/power-cuts.test.ts -t kept`,
  );
}
