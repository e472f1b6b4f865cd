import { it } from "vitest";
import { startLinkedSet } from "../support/linked-set.ts";
import { describeWithMongo } from "../support/mongodb.ts";
import { createRandom, seedOf } from "../support/random.ts";
import { runEpisodes } from "./episodes.ts";
import { mongoFaults, startMongoWorld } from "./mongodb-faults.ts";

const minutes = Number(process.env.FAULTS_MINUTES ?? 0);
const timeout = minutes * 60_000 + 600_000;

await describeWithMongo("callers of two services on a set of three", "standalone", () => {
  it("are told the truth, whatever happens to the set, its connections and the services", {
    timeout,
  }, async () => {
    const random = createRandom(seedOf("MongoDB history"));
    const set = await startLinkedSet({ delayMs: 100, electionTimeoutMs: 1_500 });
    const start = () => startMongoWorld(set, random);
    // All of them take minutes.
    const some = random.shuffle(Object.entries(mongoFaults)).slice(0, 8);
    const faults = minutes > 0 ? mongoFaults : Object.fromEntries(some);
    const totals = await runEpisodes({ start, faults, random, minutes });
    console.log(`MongoDB history: ${JSON.stringify(totals)}`);
  });
});
