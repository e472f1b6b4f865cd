/** Measures the service alone: its start, its memory, and copies. */
import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { fillSqlite } from "./database.ts";
import { list } from "./growth.ts";
import type { MongoUrl, Plan } from "./plan.ts";
import { medianOf } from "./race.ts";
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

/** Measures copies from SQLite. */
export async function measureCopies(
  { copied, folder, say }: Plan,
  toUrl: MongoUrl,
): Promise<Figure[]> {
  const figures: Figure[] = [];
  const amount = copied.toLocaleString("en");
  const source = join(folder, `${copied}.db`);
  await fillSqlite(source, copied);
  const file = `${source}.ndjson`;
  for (const [name, to] of [
    ["NDJSON", file],
    ["SQLite", `sqlite:${source}.copy`],
    ["MongoDB", toUrl("copy")],
  ] as const) {
    say(`copy ${amount} records from SQLite to ${name}`);
    const start = performance.now();
    await runService("copy", `sqlite:${source}`, to);
    const value = copied / (performance.now() - start);
    const title = `Copy of ${amount} records, SQLite to ${name}`;
    figures.push({ title, value, unit: "thousand a second" });
  }
  const lines = Number.parseInt(execFileSync("wc", ["-l", file]).toString(), 10);
  if (lines !== copied) throw new Error(`the file holds ${lines} of ${copied} records`);
  return figures;
}
