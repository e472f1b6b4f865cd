import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { compareAll, measureSide, type Side } from "../compare.ts";
import { type Contestant, startPeer, startService } from "../contestant.ts";
import { type Database, sqliteDatabase } from "../database.ts";
import { constant } from "../limits/constant.ts";
import { measureSyncs } from "../limits/disk.ts";
import { creates, gets, type Known, pathTo } from "../work.ts";
import { measureGrowth } from "./growth.ts";
import type { Figure, Findings, Plan } from "./plan.ts";

/** Measures the service on SQLite beside bare servers and one commit a create. */
export async function measureSqlite(plan: Plan): Promise<Findings> {
  const { effort, folder, say } = plan;
  const path = join(folder, "investors.db");
  const ours = await startService(`sqlite:${path}`);
  const plainUrl = (name: string) => `sqlite:${join(folder, `${name}.db`)}`;
  const [plain, connectNode, bareHttp2, bareGrpcJs, bareHttp] = await Promise.all([
    startPeer("grpc-js, one by one", "peers/grpc-js.ts", plainUrl("plain")),
    startPeer("connect-node", "peers/connect-node.ts", plainUrl("connect-node")),
    startPeer("bare node:http2", "limits/http2.ts"),
    startPeer("bare grpc-js", "limits/grpc-js.ts"),
    startPeer("bare node:http", "limits/http.ts"),
  ]);
  const database = sqliteDatabase(path);
  let created = 0;
  const create = (contestant: Contestant): Side => ({
    contestant,
    protocol: "grpc",
    path: pathTo("createInvestor"),
    work: () => creates("grpc"),
    onCreated(count) {
      if (contestant === ours) created += count;
    },
  });
  const get = (contestant: Contestant, protocol: Side["protocol"], known: Known[]): Side => ({
    contestant,
    protocol,
    path: pathTo("getInvestor"),
    work: () => gets(protocol, known),
  });

  const answers = await compareAll(
    [
      {
        title: "create, durable, SQLite",
        measure: "rate",
        callers: 128,
        ours: create(ours),
        other: create(plain),
        target: 4,
      },
    ],
    effort,
    say,
  );
  if ((await database.count()) !== created)
    throw new Error("SQLite holds other records than were stored");

  const known = await database.sample(2_000);
  const same = [constant];
  const seed = {
    ...create(connectNode),
    protocol: "connect" as const,
    work: () => creates("connect"),
  };
  await measureSide(seed, 8, 0.2);
  const readRecords = (name: string) => readPlain(join(folder, `${name}.db`));
  const byGrpc = {
    title: "get by gRPC, SQLite",
    measure: "rate",
    callers: 128,
    ours: get(ours, "grpc", known),
  } as const;
  const byConnect = {
    title: "get by Connect, SQLite",
    measure: "rate",
    callers: 64,
    ours: get(ours, "connect", known),
  } as const;
  const readings = await compareAll(
    [
      { ...byGrpc, other: get(bareHttp2, "grpc", same), target: 0.55 },
      { ...byGrpc, other: get(bareGrpcJs, "grpc", same) },
      { ...byGrpc, other: get(plain, "grpc", readRecords("plain")), target: 0.85 },
      { ...byConnect, other: get(bareHttp, "connect", same), target: 0.5 },
      { ...byConnect, other: get(connectNode, "connect", readRecords("connect-node")), target: 4 },
    ],
    effort,
    say,
  );
  const grown = await measureGrowth("SQLite", ours, database, plan);
  const figures: Figure[] = [
    { title: "syncs of the disk", value: measureSyncs(folder, effort.seconds), unit: "a second" },
    ...(await measureAlone(ours, database, say)),
  ];
  await Promise.all(
    [plain, connectNode, bareHttp2, bareGrpcJs, bareHttp].map((each) => each.stop()),
  );
  return { answers: [...answers, ...readings, ...grown.answers], figures, growth: grown.growth };
}

const openingBrace = 0x7b;

/** Measures what a process of its own must show: the time to start, and the memory of a list. */
async function measureAlone(
  before: Contestant,
  database: Database,
  say: Plan["say"],
): Promise<Figure[]> {
  await before.stop();
  const records = await database.count();
  await database.close();
  say(`a list of ${records} records`);
  const service = await startService(database.url);
  const answer = await fetch(`http://127.0.0.1:${service.httpPort}/v1/investors`);
  let found = 0;
  for await (const chunk of answer.body ?? []) {
    for (const byte of chunk as Uint8Array) if (byte === openingBrace) found += 1;
  }
  if (found !== records) throw new Error(`the list held ${found} of ${records} records`);
  const memory = service.peakMemoryMb();
  await service.stop();
  return [
    { title: "start until ready, SQLite", value: service.startMs, unit: "ms", limit: 500 },
    ...(memory === undefined
      ? []
      : [
          {
            title: `list of ${records} records by REST: memory`,
            value: memory,
            unit: "MB",
            limit: 150,
          },
        ]),
  ];
}

function readPlain(path: string): Known[] {
  const db = new DatabaseSync(path);
  const rows = db.prepare("SELECT id, content FROM investors LIMIT 2000").all();
  db.close();
  return rows.map(({ id, content }) => ({
    id: String(id),
    firstName: JSON.parse(String(content)).firstName,
  }));
}
