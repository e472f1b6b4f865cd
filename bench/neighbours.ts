/** Measures the calls of a lone caller beside others who ask for much. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { createHistogram, type RecordableHistogram } from "node:perf_hooks";
import { setTimeout as delay } from "node:timers/promises";
import { type Database, fillSqlite, mongoDatabase, sqliteDatabase } from "./database.ts";
import { openGrpc } from "./load/http2.ts";
import type { MongoUrl, Plan } from "./plan.ts";
import { type Contestant, measure, type Store, toContestant, usualCallers } from "./race.ts";
import type { Figure } from "./report.ts";
import { runService, type Server, startProgram, startService } from "./server.ts";
import { creates, gets } from "./work.ts";

const root = join(import.meta.dirname, "..");
/** Pause between two calls of the lone caller, in milliseconds. */
const pauseMs = 2;

const remote = [
  "one whole list",
  "six whole lists",
  "pages of 1,000, 32 callers",
  "the same by brotli",
  "1,000 resets a second",
];

/** Work beside which calls are measured, until it is stopped. */
type Neighbour = () => Promise<{ stop(): Promise<void> }>;

/** How many callers the tokens file has that is reloaded. */
const tokens = 10_000;
const token = "t0ken-of-the-lone-caller";

/** Measures on SQLite, and on a copy in MongoDB, beside grpc-go, which can only serve pages. */
export async function measureNeighbours(
  plan: Plan,
  goPeer: string,
  toUrl: MongoUrl,
): Promise<Figure[]> {
  const path = join(plan.folder, "neighbours.db");
  await fillSqlite(path, plan.beside);
  const ofSqlite = await measureOn(
    "SQLite",
    `sqlite:${path}`,
    () => sqliteDatabase(path),
    goPeer,
    plan,
  );
  const url = toUrl("neighbours");
  await runService("copy", `sqlite:${path}`, url);
  return [
    ...ofSqlite,
    ...(await measureOn("MongoDB", url, () => mongoDatabase(url), goPeer, plan)),
  ];
}

/** Measures gets and health checks beside each neighbour, and creates beside a whole list. */
async function measureOn(
  store: Store,
  url: string,
  open: () => Database | Promise<Database>,
  goPeer: string,
  plan: Plan,
): Promise<Figure[]> {
  const server = await startService(url);
  const database = await open();
  const contestant = toContestant(server, database, plan.beside);
  const sample = await database.sample(2_000);
  const removable = sample.splice(0, 500);
  contestant.known = sample;
  const neighbours = new Map<string, Neighbour>([
    ["nobody", async () => ({ stop: async () => {} })],
    ...remote.map((kind): [string, Neighbour] => [kind, () => startNeighbour(kind, server)]),
    ["a copy to NDJSON", () => repeat(() => ["copy", url, "-"])],
    ["a removal", () => repeat(() => ["remove", url, removable.pop()?.id ?? ""])],
  ]);
  const figures: Figure[] = [];
  const seconds = plan.seconds * plan.rounds;
  for (const [name, start] of neighbours) {
    plan.say(`${store}: a lone caller beside ${name}`);
    const { stop } = await start();
    const times = await callAlone(contestant, seconds);
    await stop();
    figures.push(...toFigures(name, store, times));
  }
  const create = () => measure(contestant, creates(), usualCallers.grpc, plan.seconds);
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

  plan.say(`${store}: a lone caller beside a reload a second`);
  const file = join(plan.folder, "tokens");
  const others = Array.from({ length: tokens }, (_, i) => `caller-${i} t0ken-of-the-caller-${i}`);
  const lines = [`lone ${token}`, ...others].join("\n");
  writeFileSync(file, lines, { mode: 0o600 });
  const reloaded = await startService(url, "--auth-tokens-file", file);
  const timer = setInterval(() => {
    // Only new content is used.
    writeFileSync(file, `${lines}\n# ${Date.now()}`);
    reloaded.signal("SIGHUP");
  }, 1_000);
  const ofReload = await callAlone({ ...contestant, server: reloaded }, seconds, `Bearer ${token}`);
  clearInterval(timer);
  await reloaded.stop();
  figures.push(...toFigures("a reload a second", store, ofReload));

  if (store === "SQLite") figures.push(...(await measurePeer(contestant, url, goPeer, plan)));
  await database.close();
  return figures;
}

/** Measures grpc-go, whose table is that of the service, beside pages. */
async function measurePeer(contestant: Contestant, url: string, goPeer: string, plan: Plan) {
  const kind = "pages of 1,000, 32 callers";
  plan.say(`SQLite: a lone caller of grpc-go beside ${kind}`);
  const peer = { ...contestant, server: await startProgram("grpc-go", goPeer, url) };
  const { stop } = await startNeighbour(kind, peer.server);
  const times = await callAlone(peer, plan.seconds * plan.rounds, undefined, []);
  await stop();
  await peer.server.stop();
  return toFigures(`${kind}, grpc-go`, "SQLite", times).map(({ goal, ...figure }) => figure);
}

function toFigures(
  neighbour: string,
  store: Store,
  { p99, longest }: { p99: number; longest: number },
): Figure[] {
  const atMost = (must: number, aim: number) => ({ is: "at most", must, aim }) as const;
  const toFigure = (what: string, value: number, goal: Figure["goal"]): Figure => ({
    title: `Beside ${neighbour}, ${store}: ${what}`,
    value,
    unit: "ms",
    goal,
    cell: [neighbour, `${store}, ${what}`],
  });
  return [toFigure("p99", p99, atMost(25, 8)), toFigure("longest", longest, atMost(150, 50))];
}

/** Calls one after the other: gets and, by another connection, health checks. */
async function callAlone(
  { server, known }: Contestant,
  seconds: number,
  authorization?: string,
  others = ["/grpc.health.v1.Health/Check"],
) {
  const { grpcPath = "", next } = gets("grpc", known);
  const end = performance.now() + seconds * 1_000;
  async function callAgain(path: string, message: () => Buffer): Promise<RecordableHistogram> {
    const histogram = createHistogram();
    const connection = openGrpc(server.port, path, authorization);
    while (performance.now() < end) {
      const begun = performance.now();
      const reply = await connection.call(message());
      if (reply.length === 0) throw new Error(`a call of ${path} failed`);
      histogram.record(Math.ceil((performance.now() - begun) * 1_000));
      await delay(pauseMs);
    }
    connection.close();
    return histogram;
  }
  const histograms = await Promise.all([
    callAgain(grpcPath, () => next().message),
    ...others.map((path) => callAgain(path, () => Buffer.alloc(0))),
  ]);
  return {
    p99: Math.max(...histograms.map((each) => each.percentile(99))) / 1_000,
    longest: Math.max(...histograms.map((each) => each.max)) / 1_000,
  };
}

async function startNeighbour(kind: string, { port }: Server) {
  const file = join(import.meta.dirname, "load/neighbour.ts");
  const args = [file, kind, String(port)];
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

async function failOnExit(child: ChildProcess, kind: string): Promise<never> {
  await once(child, "exit");
  throw new Error(`${kind} ended`);
}

async function kill(child: ChildProcess): Promise<void> {
  const gone = once(child, "exit");
  child.kill("SIGKILL");
  await gone;
}
