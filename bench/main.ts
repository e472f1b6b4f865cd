/**
 * Measures this service beside its peers and bare servers, all in one run: `npm run bench`, or
 * `npm run bench -- --quick` to see in a minute or two that all of it works. With `--growth` it
 * only compares few records with many in SQLite, and writes nothing.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { cpus, totalmem } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { MongoClient } from "mongodb";
import { MongoMemoryReplSet } from "mongodb-memory-server-core";
import { measureCopies, measureProcess } from "./alone.ts";
import { compareOnMongo, compareOnSqlite } from "./comparisons.ts";
import { judge } from "./goals.ts";
import { measureGrowth } from "./growth.ts";
import { measureNeighbours } from "./neighbours.ts";
import type { Plan } from "./plan.ts";
import { type Results, tabulate, write } from "./report.ts";
import { buildGoPeer } from "./server.ts";

const flag = { type: "boolean", default: false } as const;
const { values } = parseArgs({ options: { quick: flag, growth: flag } });
const amounts = values.quick
  ? {
      rounds: 1,
      seconds: 0.3,
      copied: 10_000,
      grown: [1_000, 10_000] as const,
      beside: 10_000,
      listed: 10_000,
      starts: 1,
    }
  : {
      rounds: 6,
      seconds: 1.5,
      copied: 1_000_000,
      grown: [100_000, 20_000_000] as const,
      beside: 100_000,
      listed: 2_000_000,
      starts: 10,
    };

// Not in a folder for temporary files, which can be in memory and then syncs nothing.
const folder = mkdtempSync(join(import.meta.dirname, "data-"));
for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, () => process.exit(1));
process.once("exit", () => rmSync(folder, { recursive: true, force: true }));

const say = (text: string) => console.log(`${new Date().toISOString().slice(11, 19)}  ${text}`);
const plan: Plan = { ...amounts, folder, say };
if (values.growth) {
  console.log(tabulate(await measureGrowth(plan)));
  process.exit();
}
say("build the peer in Go");
const goPeer = buildGoPeer();
const onSqlite = await compareOnSqlite(plan, goPeer);
const alone = [...(await measureProcess(plan)), ...(await measureGrowth(plan))];
// Not earlier, or the figures of SQLite would include what mongod writes meanwhile.
const set = await MongoMemoryReplSet.create({
  replSet: { count: 1, storageEngine: "wiredTiger" },
  instanceOpts: [{ dbPath: mkdtempSync(join(folder, "mongod-")) }],
});
const mongoUrl = (name: string) => set.getUri(name);
const onMongo = await compareOnMongo(plan, goPeer, mongoUrl);
const results: Results = {
  date: new Date().toISOString().slice(0, 16),
  machine: await describeMachine(),
  outcomes: [...onMongo, ...onSqlite],
  figures: [
    ...alone,
    ...(await measureCopies(plan, mongoUrl)),
    ...(await measureNeighbours(plan, goPeer, mongoUrl)),
  ],
};

if (values.quick) {
  say("all of it works; so short a run measures nothing");
} else {
  const { table, isMet } = judge(results);
  console.log(`\n${table}`);
  await write(results);
  process.exitCode = isMet ? 0 : 1;
}
await set.stop();
process.exit();

/** The machine in a few words. */
async function describeMachine(): Promise<string> {
  const [{ model = "unknown CPU" } = {}] = cpus();
  const gib = Math.round(totalmem() / 2 ** 30);
  const client = await MongoClient.connect(set.getUri());
  const { version } = await client.db().command({ buildInfo: 1 });
  await client.close();
  const software = `Node.js ${process.version}, MongoDB ${version}`;
  return `${cpus().length} cores of ${model.trim()}, ${gib} GiB, ${software}`;
}
