import { join } from "node:path";
import { type Contestant, startPeer, startProgram, startService } from "../contestant.ts";
import { type Database, sqliteDatabase } from "../database.ts";
import { creating, type Entrant, getting, verify } from "../entrant.ts";
import { constant } from "../limits/constant.ts";
import { measureSyncs } from "../limits/disk.ts";
import { type Outcome, type Race, run } from "../race.ts";
import { measureGrowth } from "./growth.ts";
import type { Findings, Plan } from "./plan.ts";
import { measureLists, measureStarts } from "./process.ts";

/** Measures the service on SQLite beside peers and bare servers. */
export async function measureSqlite(plan: Plan): Promise<Findings> {
  const { effort, folder, go, say } = plan;
  const file = (name: string) => join(folder, `${name}.db`);
  const starts = {
    ours: () => startService(`sqlite:${file("ours")}`),
    grpcJs: () => startPeer("grpc-js", "peers/grpc-js.ts", `sqlite:${file("grpc-js")}`),
    grpcGo: go && (() => startProgram("grpc-go", go.grpc, `sqlite:${file("grpc-go")}`)),
    pocketBase: go && (() => startProgram("PocketBase", go.pocketBase, join(folder, "pb"))),
  };
  const enter = async (starting: Promise<Contestant>, open: () => Database): Promise<Entrant> => {
    const contestant = await starting;
    return { contestant, database: open(), created: 0, known: [] };
  };
  const plainColumns = "id, content ->> 'firstName'";
  const ours = await enter(starts.ours(), () => sqliteDatabase(file("ours")));
  const grpcJs = await enter(starts.grpcJs(), () => sqliteDatabase(file("grpc-js"), plainColumns));
  const connectNode = await enter(
    startPeer("connect-node", "peers/connect-node.ts", `sqlite:${file("connect-node")}`),
    () => sqliteDatabase(file("connect-node"), plainColumns),
  );
  const grpcGo =
    starts.grpcGo && (await enter(starts.grpcGo(), () => sqliteDatabase(file("grpc-go"))));
  const pocketBase =
    starts.pocketBase &&
    (await enter(starts.pocketBase(), () =>
      sqliteDatabase(join(folder, "pb/data.db"), "id, firstName"),
    ));
  const entrants = [ours, grpcJs, connectNode, grpcGo, pocketBase].filter(
    (each) => each !== undefined,
  );
  const idle = entrants.map(({ contestant }) => contestant.memoryMib().now);
  const bare = async (name: string, program: string) => {
    const contestant = await startPeer(name, `limits/${program}.ts`);
    return { contestant, known: [constant] };
  };
  const bareHttp2 = await bare("bare node:http2", "http2");
  const bareGrpcJs = await bare("bare grpc-js", "grpc-js");
  const bareHttp = await bare("bare node:http", "http");

  const outcomes: Outcome[] = [];
  const hold = async (race: Race) => {
    say(race.title);
    outcomes.push(await run(race, effort));
  };

  await hold({
    title: "Create, SQLite",
    meaning:
      "The others commit each create by itself; the service commits together what came during the last commit. Every commit is synced to the disk before its reply.",
    callers: 128,
    ours: creating(ours),
    others: [
      [creating(grpcJs), { measure: "rate", must: 3.5, aim: 5 }],
      [grpcGo && creating(grpcGo)],
    ],
  });
  await hold({
    title: "Create by REST, SQLite",
    meaning: "JSON over HTTP/1.1. PocketBase, too, syncs every commit here; its log is off.",
    callers: 64,
    ours: creating(ours, "rest"),
    others: [[pocketBase && creating(pocketBase, "pocketBase")]],
  });
  await hold({
    title: "Create by Connect, SQLite",
    meaning: "JSON over HTTP/1.1, beside the adapter of connect-node, with one commit a create.",
    callers: 64,
    ours: creating(ours, "connect"),
    others: [[creating(connectNode, "connect")]],
  });
  await hold({
    title: "Create by a lone caller, SQLite",
    meaning: "Nothing can share a commit: what the separate writer thread costs.",
    callers: 1,
    ours: creating(ours),
    others: [[creating(grpcJs)], [grpcGo && creating(grpcGo), { measure: "p50", aim: 1.3 }]],
  });
  await verify(entrants);
  await hold({
    title: "Get, SQLite",
    meaning:
      "Mostly the cost of gRPC itself. The bare servers reply with a constant. grpc-go uses all cores, a process of Node.js one: see the CPU.",
    callers: 128,
    ours: getting(ours),
    others: [
      [getting(grpcJs)],
      [grpcGo && getting(grpcGo), { measure: "cpu", must: 1.4, aim: 1 }],
      [getting(bareGrpcJs)],
      [getting(bareHttp2), { measure: "rate", must: 0.54, aim: 0.65 }],
    ],
  });
  await hold({
    title: "Get by Connect, SQLite",
    meaning: "JSON over HTTP/1.1. The bare server replies with a constant.",
    callers: 64,
    ours: getting(ours, "connect"),
    others: [
      [getting(connectNode, "connect")],
      [getting(bareHttp, "connect"), { measure: "rate", must: 0.52, aim: 0.65 }],
    ],
  });
  await hold({
    title: "Get by REST, SQLite",
    meaning: "JSON over HTTP/1.1.",
    callers: 64,
    ours: getting(ours, "rest"),
    others: [[pocketBase && getting(pocketBase, "pocketBase")]],
  });
  await hold({
    title: "Get by a lone caller, SQLite",
    meaning: "The time that a call takes when nothing else is to be done.",
    callers: 1,
    ours: getting(ours),
    others: [[getting(grpcJs)], [grpcGo && getting(grpcGo), { measure: "p50", aim: 1.3 }]],
  });
  const memory = entrants.map(({ contestant }, i) => ({
    name: contestant.name,
    store: "SQLite",
    idle: idle[i] ?? Number.NaN,
    afterLoad: contestant.memoryMib().now,
  }));
  await Promise.all(
    [...entrants.slice(1), bareHttp2, bareGrpcJs, bareHttp].map((each) => each.contestant.stop()),
  );
  const { growth, paging } = await measureGrowth("SQLite", ours, plan);
  await ours.contestant.stop();
  const records = await ours.database.count();
  await Promise.all(entrants.map(({ database }) => database.close()));
  const syncs = measureSyncs(folder, effort.seconds);
  const figures = [
    { title: "Syncs of the disk, one after the other", value: syncs, unit: "a second" },
    ...(await measureStarts(
      Object.values(starts).filter((each) => each !== undefined),
      plan,
    )),
    ...(await measureLists(`sqlite:${file("ours")}`, records, plan)),
  ];
  return { outcomes: [...outcomes, paging], figures, growth, memory };
}
