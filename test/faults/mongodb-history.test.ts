import { expect, it } from "vitest";
import { startLinkedSet } from "../support/linked-set.ts";
import { describeWithMongo } from "../support/mongodb.ts";
import { createRandom, seedOf } from "../support/random.ts";
import { runEpisodes } from "./episodes.ts";
import { mongoFaults, startMongoWorld } from "./mongodb-faults.ts";

const minutes = Number(process.env.FAULTS_MINUTES ?? 0);
const timeout = minutes * 60_000 + 600_000;

/** Those that every run makes happen; all of them take minutes. */
const always = [
  "kill -9 of the primary",
  "a primary that is stopped",
  "a primary that is cut off",
  "a stepdown",
  "a majority that is stopped",
  "a set that dies",
];

await describeWithMongo("callers of two services on a set of three", "standalone", () => {
  it("are told the truth, whatever happens to the set, its connections and the services", {
    timeout,
  }, async () => {
    const random = createRandom(seedOf("MongoDB history"));
    const set = await startLinkedSet({ delayMs: 100, electionTimeoutMs: 1_500 });
    const start = () => startMongoWorld(set, random);
    const others = Object.keys(mongoFaults).filter((name) => !always.includes(name));
    const some = [...always, ...random.shuffle(others).slice(0, 3)];
    const faults = Object.fromEntries(
      Object.entries(mongoFaults).filter(([name]) => minutes > 0 || some.includes(name)),
    );
    const totals = await runEpisodes({ start, faults, random, minutes });
    console.log(`MongoDB history: ${JSON.stringify(totals)}`);
    expect(totals.elections).toBeGreaterThanOrEqual(2);
  });
});
