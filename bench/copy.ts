import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { type Database, fillSqlite, mongoDatabase, sqliteDatabase } from "./database.ts";
import type { MongoUrl, Plan } from "./plan.ts";
import type { Figure } from "./report.ts";

const bin = join(import.meta.dirname, "../dist/bin.js");

/** Measures how fast records are copied from SQLite to each kind of target. */
export async function measureCopies(
  { copied, folder, say }: Plan,
  toUrl: MongoUrl | undefined,
): Promise<Figure[]> {
  const source = join(folder, "source.db");
  await fillSqlite(source, copied);
  const figures: Figure[] = [];
  const note = async (
    name: string,
    to: string,
    count: () => Promise<number>,
    goal: Pick<NonNullable<Figure["goal"]>, "must" | "aim">,
  ) => {
    say(`copy ${copied} records from SQLite to ${name}`);
    const start = performance.now();
    await copy(`sqlite:${source}`, to);
    const thousandsASecond = copied / (performance.now() - start);
    if ((await count()) !== copied) throw new Error(`${name} does not hold all records`);
    figures.push({
      title: `Copy of ${copied.toLocaleString("en")} records, SQLite to ${name}`,
      value: thousandsASecond,
      unit: "thousand a second",
      goal: { is: "at least", ...goal },
    });
  };
  const file = join(folder, "copy.ndjson");
  const lines = async () => Number.parseInt(execFileSync("wc", ["-l", file]).toString(), 10);
  await note("NDJSON", file, lines, { must: 200, aim: 400 });
  const path = join(folder, "copy.db");
  await note("SQLite", `sqlite:${path}`, () => countIn(sqliteDatabase(path)), {
    must: 130,
    aim: 300,
  });
  const url = toUrl?.("copy");
  if (url !== undefined) {
    await note("MongoDB", url, async () => countIn(await mongoDatabase(url)), {
      must: 60,
      aim: 120,
    });
  }
  return figures;
}

/** Copies all records by the command of the service. */
export async function copy(from: string, to: string): Promise<void> {
  const [code] = await once(spawn(bin, ["copy", from, to], { stdio: "ignore" }), "exit");
  if (code !== 0) throw new Error(`the copy to ${to} ended with status ${code}`);
}

async function countIn(database: Database): Promise<number> {
  const count = await database.count();
  await database.close();
  return count;
}
