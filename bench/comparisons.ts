import { join } from "node:path";
import { constant } from "./content.ts";
import { mongoDatabase, sqliteDatabase } from "./database.ts";
import type { MongoUrl, Plan } from "./plan.ts";
import {
  type Contestant,
  type Goal,
  type Outcome,
  type Race,
  run,
  type Store,
  toContestant,
  verify,
} from "./race.ts";
import { type Server, startPeer, startProgram, startService } from "./server.ts";

const lone: Goal = { measure: "p50", must: 1.6, aim: 1.1 };
const rate = (must: number, aim: number): Goal => ({ measure: "rate", must, aim });

/** Compares on MongoDB, each server with a database of its own. */
export async function compareOnMongo(
  plan: Plan,
  goPeer: string,
  toUrl: MongoUrl,
): Promise<Outcome[]> {
  const enter = async (database: string, start: (url: string) => Promise<Server>) => {
    const url = toUrl(database);
    return toContestant(await start(url), await mongoDatabase(url));
  };
  const ours = await enter("ours", startService);
  const grpcJs = await enter("grpc-js", (url) => startPeer("grpc-js", "peers/grpc-js.ts", url));
  const grpcGo = await enter("grpc-go", (url) => startProgram("grpc-go", goPeer, url));
  return compare(plan, "MongoDB", ours, [
    {
      operation: "Create",
      api: "grpc",
      others: [
        [grpcJs, rate(4.5, 6)],
        [grpcGo, rate(2.9, 4)],
      ],
    },
    { operation: "Create", api: "grpc", callers: 1, others: [[grpcGo, lone]] },
    {
      operation: "Get",
      api: "grpc",
      others: [
        [grpcJs, rate(3.8, 5)],
        [grpcGo, rate(1.8, 2.3)],
      ],
    },
    { operation: "Get", api: "grpc", callers: 1, others: [[grpcGo, lone]] },
  ]);
}

/** Compares on SQLite, each server with a file of its own, and with bare servers. */
export async function compareOnSqlite(plan: Plan, goPeer: string): Promise<Outcome[]> {
  const { folder } = plan;
  const enter = async (name: string, start: (url: string) => Promise<Server>, columns?: string) => {
    const path = join(folder, `${name}.db`);
    return toContestant(await start(`sqlite:${path}`), sqliteDatabase(path, columns));
  };
  const bare = async (kind: string): Promise<Contestant> => ({
    ...toContestant(await startPeer(`bare ${kind}`, "limits.ts", kind)),
    known: [constant],
  });
  const ours = await enter("ours", startService);
  const grpcJs = await enter(
    "grpc-js",
    (url) => startPeer("grpc-js", "peers/grpc-js.ts", url),
    "id, content ->> 'firstName'",
  );
  const grpcGo = await enter("grpc-go", (url) => startProgram("grpc-go", goPeer, url));
  return compare(plan, "SQLite", ours, [
    {
      operation: "Create",
      api: "grpc",
      others: [
        [grpcJs, rate(3.6, 7)],
        [grpcGo, rate(2.8, 5)],
      ],
    },
    { operation: "Create", api: "grpc", callers: 1, others: [[grpcGo, lone]] },
    {
      operation: "Get",
      api: "grpc",
      others: [
        [grpcJs],
        [grpcGo, { measure: "cpu", must: 1.8, aim: 1.1 }],
        [await bare("node:http2"), rate(0.47, 0.75)],
      ],
    },
    {
      operation: "Get",
      api: "connect",
      others: [[await bare("node:http"), rate(0.36, 0.6)]],
    },
    { operation: "Get", api: "grpc", callers: 1, others: [[grpcGo, lone]] },
  ]);
}

async function compare(plan: Plan, store: Store, ours: Contestant, races: Race[]) {
  const others = races.flatMap((race) => race.others.map(([contestant]) => contestant));
  const all = [...new Set([ours, ...others])];
  const outcomes: Outcome[] = [];
  for (const operation of ["Create", "Get"] as const) {
    for (const race of races.filter((each) => each.operation === operation)) {
      plan.say(
        `${store}: ${operation} by ${race.api}${race.callers === 1 ? ", a lone caller" : ""}`,
      );
      outcomes.push(await run(store, race, ours, plan));
    }
    await verify(all);
  }
  await Promise.all(all.map(({ server }) => server.stop()));
  await Promise.all(all.map(({ database }) => database?.close()));
  return outcomes;
}
