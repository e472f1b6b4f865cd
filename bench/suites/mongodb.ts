import type { MongoMemoryReplSet } from "mongodb-memory-server-core";
import { type Answer, compareAll, measureSide, type Question, type Side } from "../compare.ts";
import { type Contestant, startPeer, startService } from "../contestant.ts";
import { type MongoDatabase, mongoDatabase } from "../database.ts";
import { measureDriver } from "../limits/driver.ts";
import { creates, gets, type Known, pathTo } from "../work.ts";
import { measureGrowth } from "./growth.ts";
import type { Figure, Findings, Plan } from "./plan.ts";

interface Entrant {
  contestant: Contestant;
  database: MongoDatabase;
  created: number;
  known: Known[];
}

/** Measures the service on MongoDB beside its peers, each with a database of its own. */
export async function measureMongo(
  plan: Plan,
  set: MongoMemoryReplSet,
): Promise<Findings & { version: string }> {
  const { effort, say } = plan;
  const enter = async (
    name: string,
    start: (url: string) => Promise<Contestant>,
  ): Promise<Entrant> => {
    const url = set.getUri(name);
    return {
      contestant: await start(url),
      database: await mongoDatabase(url),
      created: 0,
      known: [],
    };
  };
  const ours = await enter("ours", startService);
  const grpcJs = await enter("grpc-js", (url) => startPeer("grpc-js", "peers/grpc-js.ts", url));
  const nestJs = await enter("nestjs", (url) =>
    startPeer("NestJS, mongoose", "peers/nestjs.ts", url),
  );
  const connectNode = await enter("connect-node", (url) =>
    startPeer("connect-node", "peers/connect-node.ts", url),
  );
  const entrants = [ours, grpcJs, nestJs, connectNode];

  const create = (entrant: Entrant, protocol: Side["protocol"] = "grpc"): Side => ({
    contestant: entrant.contestant,
    protocol,
    path: pathTo("createInvestor"),
    work: () => creates(protocol),
    onCreated(count) {
      entrant.created += count;
    },
  });
  const get = (entrant: Entrant, protocol: Side["protocol"] = "grpc"): Side => ({
    contestant: entrant.contestant,
    protocol,
    path: pathTo("getInvestor"),
    work: () => gets(protocol, entrant.known),
  });
  const answers: Answer[] = [];
  const ask = async (...questions: Question[]) => {
    answers.push(...(await compareAll(questions, effort, say)));
  };

  const rate = { measure: "rate", callers: 128 } as const;
  const latency = { measure: "p50", callers: 1, target: 1.1 } as const;
  await ask(
    { ...rate, title: "create, MongoDB", ours: create(ours), other: create(grpcJs), target: 5 },
    { ...rate, title: "create, MongoDB", ours: create(ours), other: create(nestJs) },
    {
      ...rate,
      title: "create by Connect, MongoDB",
      ours: create(ours, "connect"),
      other: create(connectNode, "connect"),
    },
    {
      ...latency,
      title: "create, MongoDB: time of a call",
      ours: create(ours),
      other: create(grpcJs),
    },
  );
  for (const { contestant, database, created } of entrants) {
    const stored = await database.count();
    if (stored !== created)
      throw new Error(`${contestant.name} stored ${stored} of ${created} records`);
  }
  for (const entrant of entrants) entrant.known = await entrant.database.sample(2_000);
  await ask(
    { ...rate, title: "get, MongoDB", ours: get(ours), other: get(grpcJs), target: 4 },
    { ...rate, title: "get, MongoDB", ours: get(ours), other: get(nestJs) },
    {
      ...rate,
      title: "get by Connect, MongoDB",
      ours: get(ours, "connect"),
      other: get(connectNode, "connect"),
    },
    { ...latency, title: "get, MongoDB: time of a call", ours: get(ours), other: get(grpcJs) },
  );
  const figures = [
    ...(await measureFixedRate(get(ours), get(grpcJs), answers, effort.seconds)),
    ...(await measureLimit(set.getUri("driver"), effort.seconds)),
  ];
  await Promise.all(entrants.slice(1).map(({ contestant }) => contestant.stop()));
  const grown = await measureGrowth("MongoDB", ours.contestant, ours.database, plan);
  await ours.contestant.stop();
  const version = await ours.database.version();
  await Promise.all(entrants.map(({ database }) => database.close()));
  await set.stop();
  return { answers: [...answers, ...grown.answers], figures, growth: grown.growth, version };
}

/** Measures the times of gets at a rate that both can serve: half of what the peer can at most. */
async function measureFixedRate(
  ours: Side,
  other: Side,
  answers: Answer[],
  seconds: number,
): Promise<Figure[]> {
  const known = answers.find(({ title }) => title === "get, MongoDB");
  const rate = Math.round((known?.others.rate ?? 2_000) / 2);
  const figures: Figure[] = [];
  for (const side of [other, ours]) {
    const { p99 } = await measureSide(side, 128, seconds, rate);
    const title = `get, MongoDB, ${side.contestant.name}: 99 % of the calls take at most`;
    figures.push({ title, value: p99, unit: `ms, at ${rate} calls a second` });
  }
  return figures;
}

async function measureLimit(url: string, seconds: number): Promise<Figure[]> {
  const { creates, gets } = await measureDriver(url, seconds);
  return [
    { title: "creates by the driver alone, in batches of 512", value: creates, unit: "a second" },
    { title: "gets by the driver alone, in batches of 128", value: gets, unit: "a second" },
  ];
}
