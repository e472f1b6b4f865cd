/**
 * Measures this service beside its peers and the limits of the machine, all in one run:
 * `npm run bench`, or `npm run bench -- --quick` to see in a minute that all of it works.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { MongoMemoryReplSet } from "mongodb-memory-server-core";
import type { Effort } from "./compare.ts";
import { describeMachine, type Results, report } from "./report.ts";
import { measureCopies } from "./suites/copy.ts";
import { measureMongo } from "./suites/mongodb.ts";
import { measureSqlite } from "./suites/sqlite.ts";

const { values } = parseArgs({ options: { quick: { type: "boolean", default: false } } });
const effort: Effort = values.quick ? { rounds: 1, seconds: 0.5 } : { rounds: 5, seconds: 2 };
const growth = values.quick
  ? { callers: [1, 32], records: [10_000] }
  : { callers: [1, 8, 32, 128, 512], records: [10_000, 100_000, 1_000_000] };

// Not in a folder for temporary files, which can be in memory and then syncs nothing.
const folder = mkdtempSync(join(import.meta.dirname, "data-"));
process.once("exit", () => rmSync(folder, { recursive: true, force: true }));

const say = (text: string) => console.log(`${new Date().toISOString().slice(11, 19)}  ${text}`);
const plan = { effort, growth, folder, say };
const sqlite = await measureSqlite(plan);
const set = await startMongo();
const copies = await measureCopies(plan, set?.getUri("copies"));
const mongodb = set && (await measureMongo(plan, set));
const results: Results = {
  date: new Date().toISOString().slice(0, 10),
  machine: [describeMachine(), ...(mongodb ? [`MongoDB ${mongodb.version}`] : [])].join(", "),
  answers: [...(mongodb?.answers ?? []), ...sqlite.answers],
  figures: [...sqlite.figures, ...(mongodb?.figures ?? []), ...copies],
  growth: [...(mongodb?.growth ?? []), ...sqlite.growth],
};
await report(results, { isWritten: !values.quick && mongodb !== undefined });
process.exit();

/** A replica set of one member; undefined where no mongod can be had. */
async function startMongo(): Promise<MongoMemoryReplSet | undefined> {
  try {
    return await MongoMemoryReplSet.create({
      replSet: { count: 1, storageEngine: "wiredTiger" },
    });
  } catch (error) {
    if (process.env.CI) throw error;
    console.warn(`SKIPPED: all of MongoDB, which does not start: ${(error as Error).message}`);
    return undefined;
  }
}
