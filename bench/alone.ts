/** Measures the service alone: its start, its memory, copies, and calls with few and many records. */
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { type Database, fillSqlite, mongoDatabase, sqliteDatabase } from "./database.ts";
import type { MongoUrl, Plan } from "./plan.ts";
import { measure, medianOf, toContestant, verify } from "./race.ts";
import type { Figure } from "./report.ts";
import { startService } from "./server.ts";
import { creates, gets } from "./work.ts";

const bin = join(import.meta.dirname, "../dist/bin.js");
const openingBrace = 0x7b;
const callers = 128;

/** Measures how long the service takes to start, and its memory while it lists all records. */
export async function measureProcess({ folder, listed, starts, say }: Plan): Promise<Figure[]> {
  say(`list ${listed} records in one reply, and start ${starts} times`);
  const path = join(folder, "listed.db");
  await fillSqlite(path, listed);
  const service = await startService(`sqlite:${path}`);
  const response = await fetch(`http://127.0.0.1:${service.httpPort}/v1/investors`);
  let found = 0;
  for await (const chunk of response.body ?? []) {
    for (const byte of chunk as Uint8Array) if (byte === openingBrace) found += 1;
  }
  if (found !== listed) throw new Error(`the list held ${found} of ${listed} records`);
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

/** Measures copies from SQLite, and calls on what they have copied. */
export async function measureCopies(
  { copied, effort, folder, say }: Plan,
  toUrl: MongoUrl | undefined,
): Promise<Figure[]> {
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
      if (records !== copied.at(-1)) return;
      const title = `Copy of ${amount} records, SQLite to ${name}`;
      const goal = { is: "at least", must, aim } as const;
      figures.push({ title, value, unit: "thousand a second", goal });
    };

    /** Starts the service on a copy, and measures how fast it replies. */
    const call = async (name: string, url: string, open: () => Promise<Database>) => {
      say(`calls on ${amount} records in ${name}`);
      const service = await startService(url);
      const ours = { ...toContestant(service, await open()), created: records };
      await verify([ours]);
      for (const work of [creates("grpc"), gets("grpc", ours.known)]) {
        const { rate } = await measure(ours, work, callers, effort.seconds);
        const title = `${work.stores ? "Create" : "Get"}, ${name} with ${amount} records`;
        figures.push({ title: `${title}, ${callers} callers`, value: rate, unit: "a second" });
      }
      await verify([ours]);
      await service.stop();
      await ours.database?.close();
    };

    const file = `${source}.ndjson`;
    await copy("NDJSON", file, 200, 400);
    const lines = Number.parseInt(execFileSync("wc", ["-l", file]).toString(), 10);
    if (lines !== records) throw new Error(`the file holds ${lines} of ${records} records`);
    const path = `${source}.copy`;
    await copy("SQLite", `sqlite:${path}`, 130, 300);
    await call("SQLite", `sqlite:${path}`, async () => sqliteDatabase(path));
    if (toUrl === undefined) continue;
    const url = toUrl(`copy-${records}`);
    await copy("MongoDB", url, 60, 120);
    await call("MongoDB", url, () => mongoDatabase(url));
  }
  return figures;
}
