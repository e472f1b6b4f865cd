/** Measures the service alone: its start, its memory, copies, and calls on copies. */
import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { fillSqlite, mongoDatabase } from "./database.ts";
import { compareCalls, list } from "./growth.ts";
import type { MongoUrl, Plan } from "./plan.ts";
import { type Contestant, medianOf, toContestant } from "./race.ts";
import type { Figure } from "./report.ts";
import { runService, startService } from "./server.ts";

/** Measures how long the service takes to start, and its memory while it lists all records. */
export async function measureProcess({ folder, listed, starts, say }: Plan): Promise<Figure[]> {
  say(`list ${listed} records in one reply, and start ${starts} times`);
  const path = join(folder, "listed.db");
  await fillSqlite(path, listed);
  const service = await startService(`sqlite:${path}`);
  await list(service, listed);
  const { peak } = service.memory();
  await service.stop();

  const times: number[] = [];
  for (let round = 0; round < starts; round += 1) {
    const started = await startService(`sqlite:${path}`);
    times.push(started.startMs);
    await started.stop();
  }
  return [
    {
      title: `Peak memory for a REST list of ${listed.toLocaleString("en")} records`,
      value: peak,
      unit: "MiB",
      goal: { is: "at most", must: 200, aim: 150 },
    },
    {
      title: `Start until ready, SQLite, median of ${starts}`,
      value: medianOf(times),
      unit: "ms",
    },
  ];
}

/** Measures copies from SQLite, and calls on those in MongoDB. */
export async function measureCopies(plan: Plan, toUrl: MongoUrl): Promise<Figure[]> {
  const figures: Figure[] = [];
  const copies: [url: string, records: number][] = [];
  for (const records of plan.copied) {
    const amount = records.toLocaleString("en");
    const source = join(plan.folder, `${records}.db`);
    await fillSqlite(source, records);

    /** Copies all records, and says how fast if they are many. */
    const copy = async (name: string, to: string) => {
      plan.say(`copy ${amount} records from SQLite to ${name}`);
      const start = performance.now();
      await runService("copy", `sqlite:${source}`, to);
      const value = records / (performance.now() - start);
      if (records !== plan.copied[1]) return;
      const title = `Copy of ${amount} records, SQLite to ${name}`;
      figures.push({ title, value, unit: "thousand a second" });
    };

    const file = `${source}.ndjson`;
    await copy("NDJSON", file);
    const lines = Number.parseInt(execFileSync("wc", ["-l", file]).toString(), 10);
    if (lines !== records) throw new Error(`the file holds ${lines} of ${records} records`);
    await copy("SQLite", `sqlite:${source}.copy`);
    const url = toUrl(`copy-${records}`);
    await copy("MongoDB", url);
    copies.push([url, records]);
  }
  const contestants: Contestant[] = [];
  for (const [url, records] of copies) {
    contestants.push(toContestant(await startService(url), await mongoDatabase(url), records));
  }
  const [few, many] = contestants as [Contestant, Contestant];
  figures.push(...(await compareCalls("MongoDB", few, many, plan)));
  for (const { server, database } of contestants) {
    await server.stop();
    await database?.close();
  }
  return figures;
}
