import { rmSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { startLinkedSet } from "../support/linked-set.ts";
import { describeWithMongo } from "../support/mongodb.ts";
import { createRandom, type Random, seedOf } from "../support/random.ts";
import { hasTool } from "../support/tools.ts";
import { readBack } from "./callers.ts";
import { type FaultOf, makeHappen, type World } from "./episodes.ts";
import type { Rule } from "./history.ts";
import { mongoFaults, startMongoWorld } from "./mongodb-faults.ts";
import { compileRecorder } from "./recorded-service.ts";
import { sqliteFaults, startSqliteWorld } from "./sqlite-faults.ts";

const timeout = 600_000;

/** A broken service, what gives it away, and within how many faults. */
type Mutant = [name: string, rules: Rule[], faults: number, happen: string[]];

const env = (name: string) => ({
  MUTANT: name,
  NODE_OPTIONS: `--import=${resolve(import.meta.dirname, "../support/mutant.ts")}`,
});

/** Lets faults happen until a contradiction is found, which has to come within their number. */
async function find<W extends World>(
  world: W,
  faults: Record<string, FaultOf<W>>,
  [name, rules, limit, happen]: Mutant,
  random: Random,
): Promise<void> {
  const { callers } = world;
  const isFound = () => callers.history.violations.some(({ rule }) => rules.includes(rule));
  let count = 0;
  for (; count < limit && !isFound(); count += 1) {
    const fault = random.pick(happen);
    // What is found ends it too.
    await makeHappen(world, fault, faults[fault] as FaultOf<W>, random).catch((error) => {
      if (!isFound()) throw error;
    });
  }
  await world.recover();
  await callers.stop();
  if (!isFound()) await readBack(callers.history, await world.startFresh());
  for (const { child } of callers.services) child.kill("SIGKILL");
  console.log(`${name}: ${isFound() ? "found" : "not found"} after ${count} faults`);
  expect(callers.history.violations.map(({ rule }) => rule)).toEqual(
    expect.arrayContaining([expect.toBeOneOf(rules)]),
  );
}

const sqliteMutants: Mutant[] = [
  ["an acknowledged rollback", ["missing"], 6, ["kill -9"]],
  ["a commit told as failed", ["refused, and there", "doubled"], 6, ["kill -9"]],
  ["no replay", ["doubled"], 6, ["kill -9"]],
];

describe.runIf(hasTool("cc", ["--version"]))("a history on SQLite", () => {
  let library: string;
  beforeAll(() => {
    library = compileRecorder();
  });
  afterAll(() => rmSync(dirname(library), { recursive: true }));

  it.each(sqliteMutants)("gives %s away", { timeout }, async (...mutant) => {
    const random = createRandom(seedOf(mutant[0]));
    const world = await startSqliteWorld(library, random, env(mutant[0]));
    await find(world, sqliteFaults, mutant, random);
  });
});

const elections = [
  "kill -9 of the primary",
  "a primary that is stopped",
  "a primary that is cut off",
];
const mongoMutants: Mutant[] = [
  ["an acknowledgement without a majority", ["missing"], 15, elections],
  [
    "an open insert told as not written",
    ["refused, and there", "doubled"],
    6,
    ["replies that are cut off", "half-closed connections"],
  ],
  ["reads without the fence", ["missing"], 15, elections],
];

await describeWithMongo("a history on MongoDB", "standalone", () => {
  it.each(mongoMutants)("gives %s away", { timeout }, async (...mutant) => {
    const random = createRandom(seedOf(mutant[0]));
    const set = await startLinkedSet({ delayMs: 100, electionTimeoutMs: 1_500 });
    const world = await startMongoWorld(set, random, env(mutant[0]));
    await find(world, mongoFaults, mutant, random);
  });
});
