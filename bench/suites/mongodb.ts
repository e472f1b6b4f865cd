import type { MongoMemoryReplSet } from "mongodb-memory-server-core";
import { type Contestant, startPeer, startProgram, startService } from "../contestant.ts";
import { type MongoDatabase, mongoDatabase } from "../database.ts";
import { creating, type Entrant, getting, verify } from "../entrant.ts";
import { measureDriver } from "../limits/driver.ts";
import { type Goal, type Outcome, type Race, run } from "../race.ts";
import { measureGrowth } from "./growth.ts";
import type { Figure, Findings, Plan } from "./plan.ts";

/** Measures the service on MongoDB beside its peers, each with a database of its own. */
export async function measureMongo(
  plan: Plan,
  set: MongoMemoryReplSet,
): Promise<Findings & { version: string }> {
  const { effort, go, say } = plan;
  const enter = async (
    name: string,
    start: (url: string) => Promise<Contestant>,
  ): Promise<Entrant & { database: MongoDatabase }> => {
    const url = set.getUri(name);
    const contestant = await start(url);
    return { contestant, database: await mongoDatabase(url), created: 0, known: [] };
  };
  const peer = (name: string, file: string) =>
    enter(file, (url) => startPeer(name, `peers/${file}.ts`, url));
  const ours = await enter("ours", startService);
  const grpcJs = await peer("grpc-js", "grpc-js");
  const nestJs = await peer("NestJS, mongoose", "nestjs");
  const connectNode = await peer("connect-node", "connect-node");
  const grpcGo = go && (await enter("grpc-go", (url) => startProgram("grpc-go", go.grpc, url)));
  const entrants = [ours, grpcJs, nestJs, connectNode, ...(grpcGo ? [grpcGo] : [])];
  const idle = entrants.map(({ contestant }) => contestant.memoryMib().now);

  const outcomes: Outcome[] = [];
  const hold = async (race: Race) => {
    say(race.title);
    const outcome = await run(race, effort);
    outcomes.push(outcome);
    return outcome;
  };
  const rate = (must: number, aim: number): Goal => ({ measure: "rate", must, aim });
  const alone: Goal = { measure: "p50", must: 1.15, aim: 1 };
  const aloneBesideGo: Goal = { measure: "p50", aim: 1.3 };

  await hold({
    title: "Create, MongoDB",
    meaning:
      "The others insert one document a call, as one would write it first; the service inserts in one batch what came while the last one was on its way. All wait until a majority has it in its journal.",
    callers: 128,
    ours: creating(ours),
    others: [
      [creating(grpcJs), rate(4.2, 5)],
      [creating(nestJs)],
      [grpcGo && creating(grpcGo), rate(1.6, 2.5)],
    ],
  });
  await hold({
    title: "Create by Connect, MongoDB",
    meaning: "The same by JSON over HTTP/1.1.",
    callers: 128,
    ours: creating(ours, "connect"),
    others: [[creating(connectNode, "connect")]],
  });
  await hold({
    title: "Create by a lone caller, MongoDB",
    meaning: "Nothing can be batched: what the batches cost a caller.",
    callers: 1,
    ours: creating(ours),
    others: [
      [creating(grpcJs), alone],
      [grpcGo && creating(grpcGo), aloneBesideGo],
    ],
  });
  await verify(entrants);
  const gets = await hold({
    title: "Get, MongoDB",
    meaning:
      "The others send one find per call; the service sends one find for all calls that arrived meanwhile. All use read concern majority.",
    callers: 128,
    ours: getting(ours),
    others: [
      [getting(grpcJs), rate(3.6, 4)],
      [getting(nestJs)],
      [grpcGo && getting(grpcGo), rate(1.2, 2)],
    ],
  });
  await hold({
    title: "Get by Connect, MongoDB",
    meaning: "The same by JSON over HTTP/1.1.",
    callers: 128,
    ours: getting(ours, "connect"),
    others: [[getting(connectNode, "connect")]],
  });
  await hold({
    title: "Get by a lone caller, MongoDB",
    meaning: "Nothing can be batched.",
    callers: 1,
    ours: getting(ours),
    others: [[getting(grpcJs), alone], [grpcGo && getting(grpcGo)]],
  });
  const fixed = Math.max(100, Math.round((gets.standings[1]?.rate ?? 0) / 2));
  await hold({
    title: `Get at ${fixed.toLocaleString("en")} calls a second, MongoDB`,
    meaning:
      "The times of calls at a rate that all of them can serve, counted from when a call was due.",
    callers: 128,
    rate: fixed,
    ours: getting(ours),
    others: [[getting(grpcJs)], [grpcGo && getting(grpcGo)]],
  });
  const memory = entrants.map(({ contestant }, i) => ({
    name: contestant.name,
    store: "MongoDB",
    idle: idle[i] ?? Number.NaN,
    afterLoad: contestant.memoryMib().now,
  }));
  await Promise.all(entrants.slice(1).map(({ contestant }) => contestant.stop()));
  const figures = await measureLimit(set.getUri("driver"), effort.seconds);
  const { growth, paging } = await measureGrowth("MongoDB", ours, plan);
  await ours.contestant.stop();
  const version = await ours.database.version();
  await Promise.all(entrants.map(({ database }) => database.close()));
  return { outcomes: [...outcomes, paging], figures, growth, memory, version };
}

async function measureLimit(url: string, seconds: number): Promise<Figure[]> {
  const { creates, gets } = await measureDriver(url, seconds);
  return [
    {
      title: "Creates by MongoDB's driver alone, one batch of 512 after the other",
      value: creates,
      unit: "a second",
    },
    {
      title: "Gets by MongoDB's driver alone, one batch of 128 after the other",
      value: gets,
      unit: "a second",
    },
  ];
}
