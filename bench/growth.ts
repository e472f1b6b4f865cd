/** Measures the service on few and on many records, beside each other. */
import { execFileSync } from "node:child_process";
import { existsSync, rmSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { fillSqlite, sqliteDatabase } from "./database.ts";
import { openGrpc } from "./load/http2.ts";
import { putLoad } from "./load/load.ts";
import type { Plan } from "./plan.ts";
import {
  type Contestant,
  measure,
  medianOf,
  type Race,
  run,
  toContestant,
  usualCallers,
  verify,
} from "./race.ts";
import type { Figure } from "./report.ts";
import { runService, type Server, startService } from "./server.ts";
import { show } from "./table.ts";
import { creates, gets } from "./work.ts";

/** How many records are got in turn: SQLite's cache holds the pages of far fewer. */
const sampled = 100_000;
const removals = 3;
const callersBesideRemoval = 4;
const openingBrace = "{".charCodeAt(0);

/** Measures on SQLite: calls, removals and starts. */
export async function measureGrowth(plan: Plan): Promise<Figure[]> {
  const { folder, grown, say, seconds, starts } = plan;
  const toPath = (records: number) => join(folder, `grown-${records}.db`);
  const contestants: Contestant[] = [];
  for (const records of grown) {
    const path = toPath(records);
    say(`make ${show(records)} records in SQLite`);
    await fillSqlite(path, records);
    const service = await startService(`sqlite:${path}`);
    contestants.push(toContestant(service, sqliteDatabase(path), records));
  }
  const [few, many] = contestants as [Contestant, Contestant];
  const path = toPath(grown[1]);
  const figures: Figure[] = [];
  figures.push(...(await compareCalls(few, many, plan)));
  await few.server.stop();
  await few.database?.close();

  const records = `${show(grown[1])} records`;
  const notInMemory = `SQLite with ${records}, not in memory`;
  forget(path);
  const cold = await measure(many, gets("grpc", many.known), usualCallers.grpc, seconds);
  figures.push({ title: `Get, ${notInMemory}`, value: cold.rate, unit: "a second" });
  say(`remove one of ${records} beside creates, ${removals} times`);
  const pauses: number[] = [];
  for (const { id } of many.known.slice(0, removals)) {
    pauses.push(await longestPause(many, runService("remove", `sqlite:${path}`, id)));
    many.created -= 1;
  }
  await verify([many]);
  // As long as it is open, the last connection, which deletes the WAL, is not the service's.
  await many.database?.close();
  figures.push({
    title: `Longest time without a create while one of ${records} is removed, SQLite`,
    value: medianOf(pauses),
    unit: "ms",
    goal: { is: "at most", must: 1_000, aim: 200 },
  });
  say(`start on ${records}, ${starts} times after kill -9 and as often after SIGTERM`);
  const { killed, clean } = await measureStarts(path, many.server, plan);
  rmSync(path);
  return [
    ...figures,
    { title: `Start after kill -9, ${notInMemory}`, value: medianOf(killed), unit: "ms" },
    { title: `Start after SIGTERM, ${notInMemory}`, value: medianOf(clean), unit: "ms" },
    {
      title: `Start after kill -9, ${notInMemory}, × after SIGTERM`,
      value: medianOf(killed.map((ms, round) => ms / (clean[round] ?? Number.NaN))),
      unit: "×",
      goal: { is: "at most", must: 2, aim: 1.2 },
    },
  ];
}

/** Compares calls on many records with those on few. */
async function compareCalls(few: Contestant, many: Contestant, plan: Plan): Promise<Figure[]> {
  const figures: Figure[] = [];
  const fewRecords = `${show(few.created)} records`;
  const manyRecords = `${show(many.created)} records`;
  await verify([few, many], sampled);
  // Gets first: creates soon make few records many.
  for (const operation of ["Get", "Create"] as const) {
    plan.say(`SQLite: ${operation} with ${fewRecords} and with ${manyRecords}`);
    const race: Race = { operation, api: "grpc", others: [[few]] };
    const { callers, standings } = await run("SQLite", race, many, plan);
    const [, onFew] = standings;
    if (onFew === undefined) continue;
    figures.push({
      title: `${operation}, SQLite with ${manyRecords}, ${callers} callers, × with ${fewRecords}`,
      value: onFew.ratios.rate,
      unit: "×",
      goal: { is: "at least", must: operation === "Get" ? 0.6 : 0.8, aim: 0.9 },
    });
  }
  await verify([few, many], sampled);
  return figures;
}

/**
 * Lists all records in one reply.
 *
 * @returns the time that it took, in seconds
 * @throws {Error} there were more or fewer
 */
export async function list({ port }: Server, records: number): Promise<number> {
  const start = performance.now();
  const response = await fetch(`http://127.0.0.1:${port}/v1/investors`);
  let found = 0;
  for await (const chunk of response.body ?? []) {
    let at = chunk.indexOf(openingBrace);
    for (; at !== -1; at = chunk.indexOf(openingBrace, at + 1)) found += 1;
  }
  if (found !== records) throw new Error(`the list held ${found} of ${records} records`);
  return (performance.now() - start) / 1_000;
}

/** The longest time in which no create of a few callers succeeded, in milliseconds. */
async function longestPause(contestant: Contestant, work: Promise<unknown>): Promise<number> {
  const { grpcPath = "", next } = creates();
  let isOver = false;
  let last = performance.now();
  let longest = 0;

  async function createAgain(): Promise<void> {
    const connection = openGrpc(contestant.server.port, grpcPath);
    while (!isOver) {
      const { message, expected } = next();
      const reply = await connection.call(message);
      if (!reply.includes(expected, 0, "latin1")) throw new Error("a create failed");
      contestant.created += 1;
      longest = Math.max(longest, performance.now() - last);
      last = performance.now();
    }
    connection.close();
  }

  const over = work.finally(() => {
    isOver = true;
  });
  await Promise.all([over, ...Array.from({ length: callersBesideRemoval }, createAgain)]);
  return longest;
}

/** Starts with nothing of the file in memory, in milliseconds. */
async function measureStarts(path: string, running: Server, { seconds, starts }: Plan) {
  const startAnew = () => {
    forget(path);
    if (existsSync(`${path}-wal`)) forget(`${path}-wal`);
    return startService(`sqlite:${path}`);
  };
  const killed: number[] = [];
  const clean: number[] = [];
  let server = running;
  for (let round = 0; round < starts; round += 1) {
    const load = putLoad(server, creates(), usualCallers.grpc, 2 * seconds).catch(() => {});
    await delay(seconds * 1_000);
    await server.stop("SIGKILL");
    await load;
    server = await startAnew();
    killed.push(server.startMs);
    await server.stop();
    server = await startAnew();
    clean.push(server.startMs);
  }
  await server.stop();
  return { killed, clean };
}

/** Drops a file from memory, where dd can do that. */
function forget(path: string): void {
  if (process.platform !== "linux") return;
  const options = ["oflag=nocache", "conv=notrunc,fdatasync", "count=0", "status=none"];
  execFileSync("dd", [`of=${path}`, ...options]);
}
