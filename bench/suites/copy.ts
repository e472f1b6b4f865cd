import { spawn } from "node:child_process";
import { once } from "node:events";
import { createReadStream } from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { startService } from "../contestant.ts";
import { type Database, mongoDatabase, sqliteDatabase } from "../database.ts";
import { creating, type Entrant, verify } from "../entrant.ts";
import { measure, medianOf } from "../race.ts";
import { type Figure, mostRecords, type Plan } from "./plan.ts";

const bin = join(import.meta.dirname, "../../dist/bin.js");
const lineFeed = 0x0a;

/** Measures copies of many records. */
export async function measureCopies(plan: Plan, mongoUrl: string | undefined): Promise<Figure[]> {
  const { folder, say } = plan;
  const count = mostRecords(plan);
  const from = await fill(join(folder, "source.db"), count);
  const file = join(folder, "copy.ndjson");
  const other = join(folder, "copy.db");
  const inMongo = async (url: string) => countIn(await mongoDatabase(url));
  const figures: Figure[] = [];
  for (const { name, to, goal, countCopied } of [
    {
      name: "NDJSON",
      to: file,
      goal: { must: 100_000, aim: 250_000 },
      countCopied: () => countLines(file),
    },
    {
      name: "SQLite",
      to: `sqlite:${other}`,
      goal: { must: 80_000, aim: 200_000 },
      countCopied: () => countIn(sqliteDatabase(other)),
    },
    ...(mongoUrl === undefined
      ? []
      : [
          {
            name: "MongoDB",
            to: mongoUrl,
            goal: { must: 30_000, aim: 50_000 },
            countCopied: () => inMongo(mongoUrl),
          },
        ]),
  ]) {
    say(`a copy of ${count} records from SQLite to ${name}`);
    const start = performance.now();
    await copy(from, to);
    const value = (count / (performance.now() - start)) * 1_000;
    if ((await countCopied()) !== count) throw new Error(`${name} holds other records`);
    figures.push({
      title: `Copy of ${count.toLocaleString("en")} records, SQLite to ${name}`,
      value,
      unit: "records a second",
      goal: { ...goal, is: "at least" },
    });
  }
  return figures;
}

/** How much longer a round is here than in a race, so that its p99 has several pauses of V8. */
const timesLonger = 4;

/** Measures creates at half of the peak rate, without a copy and during copies, in turn. */
export async function measureWhileCopying(plan: Plan): Promise<Figure[]> {
  const { effort, folder, say } = plan;
  say("creates while the records are copied");
  const path = join(folder, "busy.db");
  const created = mostRecords(plan);
  const from = await fill(path, created);
  const database = sqliteDatabase(path);
  const entrant: Entrant = { contestant: await startService(from), database, created, known: [] };
  const side = creating(entrant);
  const findRate = () => measure(side, 128, effort.seconds).then(({ rate }) => rate);
  await findRate();
  const rate = Math.round((await findRate()) / 2);
  const findP99 = async () => (await measure(side, 128, effort.seconds * timesLonger, rate)).p99;
  const to = join(folder, "busy.ndjson");
  const without: number[] = [];
  const during: number[] = [];
  for (let round = 0; round < effort.rounds / 2; round += 1) {
    if (round % 2 === 0) without.push(await findP99());
    const end = new AbortController();
    const [p99] = await Promise.all([
      findP99().finally(() => end.abort()),
      copyRepeatedly(from, to, end.signal),
    ]);
    during.push(p99);
    if (round % 2 === 1) without.push(await findP99());
  }
  await entrant.contestant.stop();
  await verify([entrant]);
  await database.close();
  const title = `p99 of ${rate.toLocaleString("en")} creates a second, half of the peak, SQLite:`;
  return [
    { title: `${title} without a copy`, value: medianOf(without), unit: "ms" },
    { title: `${title} during copies to NDJSON`, value: medianOf(during), unit: "ms" },
    {
      title:
        "p99 of creates at half of the peak rate, SQLite: during copies to NDJSON, relative to without",
      value: medianOf(during) / medianOf(without),
      unit: "×",
      goal: { is: "at most", must: 2, aim: 1.5 },
    },
  ];
}

/** Makes an SQLite file with many records, and returns its URL. */
async function fill(path: string, count: number): Promise<string> {
  const url = `sqlite:${path}`;
  await startService(url).then((service) => service.stop());
  const database = sqliteDatabase(path);
  await database.fill(count);
  await database.close();
  return url;
}

async function copyRepeatedly(from: string, to: string, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    await copy(from, to, signal);
    await rm(to, { force: true });
  }
}

/** Copies all records, or stops when the signal aborts. */
async function copy(from: string, to: string, signal?: AbortSignal): Promise<void> {
  const child = spawn(bin, ["copy", from, to], { stdio: "ignore" });
  signal?.addEventListener("abort", () => child.kill());
  const [code] = await once(child, "exit");
  if (code === 0 || signal?.aborted) return;
  throw new Error(`the copy to ${to} ended with status ${code}`);
}

async function countIn(database: Database): Promise<number> {
  const count = await database.count();
  await database.close();
  return count;
}

async function countLines(path: string): Promise<number> {
  let count = 0;
  for await (const chunk of createReadStream(path)) {
    for (const byte of chunk as Buffer) if (byte === lineFeed) count += 1;
  }
  return count;
}
