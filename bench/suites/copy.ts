import { spawn } from "node:child_process";
import { once } from "node:events";
import { createReadStream } from "node:fs";
import { join } from "node:path";
import { measureSide, type Side } from "../compare.ts";
import { startService } from "../contestant.ts";
import { type Database, mongoDatabase, sqliteDatabase } from "../database.ts";
import { creates, pathTo } from "../work.ts";
import type { Figure, Plan } from "./plan.ts";

const bin = join(import.meta.dirname, "../../dist/bin.js");
const lineFeed = 0x0a;

/** Measures copies of many records, and what a service notices of one. */
export async function measureCopies(
  { effort, growth, folder, say }: Plan,
  mongoUrl: string | undefined,
): Promise<Figure[]> {
  const path = join(folder, "source.db");
  const from = `sqlite:${path}`;
  const count = growth.records.at(-1) ?? 0;
  const figures: Figure[] = [];
  await startService(from).then((service) => service.stop());
  const source = sqliteDatabase(path);
  await source.fill(count);

  async function measure(
    name: string,
    to: string,
    least: number,
    countCopied: () => Promise<number>,
  ) {
    say(`a copy of ${count} records from SQLite to ${name}`);
    const begun = performance.now();
    await copy(from, to);
    const value = (count / (performance.now() - begun)) * 1_000;
    if ((await countCopied()) !== count) throw new Error(`${name} holds other records`);
    const title = `copy of ${count} records, SQLite → ${name}`;
    figures.push({ title, value, unit: "records a second", least });
  }

  const file = join(folder, "copy.ndjson");
  await measure("NDJSON", file, 100_000, () => countLines(file));
  const other = join(folder, "copy.db");
  await measure("SQLite", `sqlite:${other}`, 80_000, () => countIn(sqliteDatabase(other)));
  if (mongoUrl !== undefined) {
    const countMongo = async () => countIn(await mongoDatabase(mongoUrl));
    await measure("MongoDB", mongoUrl, 30_000, countMongo);
  }
  await source.close();
  figures.push(...(await measureBeside(from, join(folder, "beside"), effort.seconds, say)));
  return figures;
}

/** Measures creates at half of their peak rate, alone and while the records are copied. */
async function measureBeside(
  from: string,
  to: string,
  seconds: number,
  say: Plan["say"],
): Promise<Figure[]> {
  say("creates while the records are copied");
  const contestant = await startService(from);
  const work = () => creates("grpc");
  const side: Side = { contestant, protocol: "grpc", path: pathTo("createInvestor"), work };
  const peak = await measureSide(side, 128, seconds);
  const rate = Math.round(peak.rate / 2);
  const alone = await measureSide(side, 128, seconds, rate);
  let isOver = false;
  const copies = (async () => {
    for (let n = 0; !isOver; n += 1) await copy(from, `${to}-${n}.ndjson`);
  })();
  const beside = await measureSide(side, 128, seconds, rate);
  isOver = true;
  await copies;
  await contestant.stop();
  const title = "create, SQLite: 99 % of the calls take at most";
  const unit = `ms, at ${rate} calls a second`;
  return [
    { title, value: alone.p99, unit },
    { title: `${title}, while copied`, value: beside.p99, unit, limit: 2 * alone.p99 },
  ];
}

async function copy(from: string, to: string): Promise<void> {
  const child = spawn(process.execPath, [bin, "copy", from, to], { stdio: "ignore" });
  const [code] = await once(child, "exit");
  if (code !== 0) throw new Error(`the copy to ${to} ended with status ${code}`);
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
