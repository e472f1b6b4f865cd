/** Measures the service alone: its start, its memory, copies, and calls on copies. */
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { fillSqlite, mongoDatabase } from "./database.ts";
import { compareCalls, enter, list } from "./growth.ts";
import type { MongoUrl, Plan } from "./plan.ts";
import { medianOf } from "./race.ts";
import type { Figure } from "./report.ts";
import { bin, startService } from "./server.ts";

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
      goal: { is: "at most", must: 250, aim: 150 },
    },
  ];
}

/** Measures copies from SQLite, and calls on those in MongoDB. */
export async function measureCopies(plan: Plan, toUrl: MongoUrl | undefined): Promise<Figure[]> {
  const { copied, folder, say } = plan;
  const figures: Figure[] = [];
  for (const records of copied) {
    const amount = records.toLocaleString("en");
    const source = join(folder, `${records}.db`);
    await fillSqlite(source, records);

    /** Copies all records, and says how fast if they are many. */
    const copy = async (name: string, to: string, must: number, aim: number) => {
      say(`copy ${amount} records from SQLite to ${name}`);
      const start = performance.now();
      const copying = spawn(bin, ["copy", `sqlite:${source}`, to], { stdio: "ignore" });
      const [code] = await once(copying, "exit");
      if (code !== 0) throw new Error(`the copy to ${to} ended with status ${code}`);
      const value = records / (performance.now() - start);
      if (records !== copied[1]) return;
      const title = `Copy of ${amount} records, SQLite to ${name}`;
      const goal = { is: "at least", must, aim } as const;
      figures.push({ title, value, unit: "thousand a second", goal });
    };

    const file = `${source}.ndjson`;
    await copy("NDJSON", file, 200, 400);
    const lines = Number.parseInt(execFileSync("wc", ["-l", file]).toString(), 10);
    if (lines !== records) throw new Error(`the file holds ${lines} of ${records} records`);
    await copy("SQLite", `sqlite:${source}.copy`, 130, 300);
    if (toUrl !== undefined) await copy("MongoDB", toUrl(`copy-${records}`), 60, 120);
  }
  if (toUrl === undefined) return figures;
  const enterCopy = async (records: number) => {
    const url = toUrl(`copy-${records}`);
    return enter(url, await mongoDatabase(url), records);
  };
  const few = await enterCopy(copied[0]);
  const many = await enterCopy(copied[1]);
  figures.push(...(await compareCalls("MongoDB", few, many, plan)));
  for (const { server, database } of [few, many]) {
    await server.stop();
    await database?.close();
  }
  return figures;
}
