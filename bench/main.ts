/**
 * Measures this service beside its peers and the limits of the machine, all in one run:
 * `npm run bench`, or `npm run bench -- --quick` to see in a minute or two that all of it works.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { MongoMemoryReplSet } from "mongodb-memory-server-core";
import { buildGoPeers } from "./go.ts";
import { judge } from "./goals.ts";
import { describeMachine, type Results, write } from "./report.ts";
import { measureCopies, measureWhileCopying } from "./suites/copy.ts";
import { measureMongo } from "./suites/mongodb.ts";
import type { Findings, Plan } from "./suites/plan.ts";
import { measureSqlite } from "./suites/sqlite.ts";

const { values } = parseArgs({ options: { quick: { type: "boolean", default: false } } });
const amount = values.quick
  ? {
      effort: { rounds: 1, seconds: 0.3 },
      growth: { callers: [1, 512], records: [10_000] },
      starts: 1,
    }
  : {
      effort: { rounds: 10, seconds: 1.5 },
      growth: { callers: [1, 8, 32, 128, 512], records: [10_000, 100_000, 1_000_000] },
      starts: 10,
    };

// Not in a folder for temporary files, which can be in memory and then syncs nothing.
const folder = mkdtempSync(join(import.meta.dirname, "data-"));
for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, () => process.exit(1));
process.once("exit", () => rmSync(folder, { recursive: true, force: true }));

const say = (text: string) => console.log(`${new Date().toISOString().slice(11, 19)}  ${text}`);
say("build the peers in Go");
const plan: Plan = { ...amount, folder, go: buildGoPeers(), say };
const sqlite = await measureSqlite(plan);
// Before there is a mongod, whose checkpoints would be measured too.
const busy = await measureWhileCopying(plan);
const set = await startMongo();
const mongodb = set && (await measureMongo(plan, set));
const copies = await measureCopies(plan, set?.getUri("copies"));
const found: Findings[] = mongodb ? [mongodb, sqlite] : [sqlite];

const results: Results = {
  date: new Date().toISOString().slice(0, 16),
  machine: [describeMachine(), ...(mongodb ? [`MongoDB ${mongodb.version}`] : [])].join(", "),
  outcomes: found.flatMap(({ outcomes }) => outcomes),
  figures: [...found.flatMap(({ figures }) => figures), ...copies, ...busy],
  growth: found.flatMap(({ growth }) => growth),
  memory: found.flatMap(({ memory }) => memory),
};
await set?.stop();

const { table, isMet } = judge(results);
console.log(`\n${table}`);
if (values.quick) console.log("\nSo short a run tells only that all of it works.");
if (!values.quick && mongodb && plan.go) {
  await write(results);
  process.exitCode = isMet ? 0 : 1;
}
process.exit();

/** A replica set of one member; undefined where no mongod can be had. */
async function startMongo(): Promise<MongoMemoryReplSet | undefined> {
  try {
    return await MongoMemoryReplSet.create({
      replSet: { count: 1, storageEngine: "wiredTiger" },
      instanceOpts: [{ dbPath: mkdtempSync(join(folder, "mongod-")) }],
    });
  } catch (error) {
    if (process.env.CI) throw error;
    console.warn(`SKIPPED: all of MongoDB, which does not start: ${(error as Error).message}`);
    return undefined;
  }
}
