/** Measures the calls of a lone caller beside others who ask for much. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { createHistogram, type RecordableHistogram } from "node:perf_hooks";
import { setTimeout as delay } from "node:timers/promises";
import { type Database, fillSqlite, mongoDatabase, sqliteDatabase } from "./database.ts";
import { openGrpc } from "./load/http2.ts";
import type { MongoUrl, Plan } from "./plan.ts";
import { type Contestant, measure, type Store, toContestant, usualCallers } from "./race.ts";
import type { Figure } from "./report.ts";
import { runService, type Server, startService } from "./server.ts";
import { creates, gets } from "./work.ts";

const root = join(import.meta.dirname, "..");
/** Pause between two calls of the lone caller, in milliseconds. */
const pauseMs = 2;

const remote = [
  "one whole list",
  "six whole lists",
  "pages of 1,000, 32 callers",
  "the same by brotli",
  "1,024 watches and a scrape a second",
  "1,000 resets a second",
];

/** Work beside which calls are measured, until it is stopped. */
type Neighbour = () => Promise<{ stop(): Promise<void> }>;

/** Measures on SQLite, and on a copy in MongoDB. */
export async function measureNeighbours(plan: Plan, toUrl: MongoUrl): Promise<Figure[]> {
  const path = join(plan.folder, "neighbours.db");
  await fillSqlite(path, plan.beside);
  const figures = await measureOn("SQLite", `sqlite:${path}`, () => sqliteDatabase(path), plan);
  const url = toUrl("neighbours");
  await runService("copy", `sqlite:${path}`, url);
  return [...figures, ...(await measureOn("MongoDB", url, () => mongoDatabase(url), plan))];
}

/** Measures gets and health checks beside each neighbour, and creates beside a whole list. */
async function measureOn(
  store: Store,
  url: string,
  open: () => Database | Promise<Database>,
  plan: Plan,
): Promise<Figure[]> {
  const server = await startService(url);
  const database = await open();
  const contestant = toContestant(server, database, plan.beside);
  contestant.known = await database.sample(2_000);
  const neighbours = new Map<string, Neighbour>([
    ["nobody", async () => ({ stop: async () => {} })],
    ...remote.map((kind): [string, Neighbour] => [kind, () => startNeighbour(kind, server)]),
    ["a copy to NDJSON", () => repeat(() => ["copy", url, "-"])],
    ["a removal", () => repeat(() => ["remove", url, takeId(contestant)])],
  ]);
  const figures: Figure[] = [];
  for (const [name, start] of neighbours) {
    plan.say(`${store}: a lone caller beside ${name}`);
    const { stop } = await start();
    const { p99, longest } = await callAlone(contestant, plan.seconds * plan.rounds);
    await stop();
    const title = `Get or health check beside ${name}, ${store}`;
    figures.push(
      { title: `${title}: p99`, value: p99, unit: "ms", goal: { is: "at most", must: 25, aim: 8 } },
      {
        title: `${title}: longest`,
        value: longest,
        unit: "ms",
        goal: { is: "at most", must: 150, aim: 50 },
      },
    );
  }
  const create = () => measure(contestant, creates("grpc"), usualCallers.grpc, plan.seconds);
  const ratios: number[] = [];
  for (let round = 0; round < plan.rounds; round += 1) {
    const { rate: without } = await create();
    const { stop } = await startNeighbour("one whole list", server);
    const { rate } = await create();
    await stop();
    ratios.push(rate / without);
  }
  figures.push({
    title: `Creates beside one whole list, ${store}, × without it`,
    value: ratios.reduce((sum, each) => sum + each) / ratios.length,
    unit: "×",
    goal: { is: "at least", must: 0.5, aim: 0.7 },
  });
  await server.stop();
  await database.close();
  return figures;
}

/** Calls one after the other: gets and, by another connection, health checks. */
async function callAlone({ server, known }: Contestant, seconds: number) {
  const { grpcPath = "", next } = gets("grpc", known);
  const histograms = [createHistogram(), createHistogram()];
  const end = performance.now() + seconds * 1_000;
  async function callAgain(path: string, message: () => Buffer, histogram: RecordableHistogram) {
    const connection = openGrpc(server.port, path);
    while (performance.now() < end) {
      const begun = performance.now();
      const reply = await connection.call(message());
      if (reply.length === 0) throw new Error(`a call of ${path} failed`);
      histogram.record(Math.ceil((performance.now() - begun) * 1_000));
      await delay(pauseMs);
    }
    connection.close();
  }
  await Promise.all([
    callAgain(grpcPath, () => next().message, histograms[0] as RecordableHistogram),
    callAgain(
      "/grpc.health.v1.Health/Check",
      () => Buffer.alloc(0),
      histograms[1] as RecordableHistogram,
    ),
  ]);
  return {
    p99: Math.max(...histograms.map((each) => each.percentile(99))) / 1_000,
    longest: Math.max(...histograms.map((each) => each.max)) / 1_000,
  };
}

async function startNeighbour(kind: string, { port, httpPort }: Server) {
  const file = join(import.meta.dirname, "load/neighbour.ts");
  const args = [file, kind, String(port), String(httpPort)];
  const child = spawn(process.execPath, args, { stdio: ["ignore", "pipe", "inherit"] });
  await Promise.race([once(child.stdout, "data"), failOnExit(child, kind)]);
  return { stop: () => kill(child) };
}

/** Runs a command of the service again and again. */
async function repeat(args: () => string[]) {
  let isOver = false;
  let child: ChildProcess | undefined;
  const running = (async () => {
    while (!isOver) {
      child = spawn(join(root, "dist/bin.js"), args(), { stdio: "ignore" });
      await once(child, "exit");
    }
  })();
  return {
    async stop() {
      isOver = true;
      child?.kill();
      await running;
    },
  };
}

function takeId(contestant: Contestant): string {
  contestant.created -= 1;
  return contestant.known.pop()?.id ?? "";
}

async function failOnExit(child: ChildProcess, kind: string): Promise<never> {
  await once(child, "exit");
  throw new Error(`${kind} ended`);
}

async function kill(child: ChildProcess): Promise<void> {
  const gone = once(child, "exit");
  child.kill("SIGKILL");
  await gone;
}
