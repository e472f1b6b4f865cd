/**
 * Creates and gets on MongoDB: this service beside a plain grpc-js server, on the same
 * mongod, round by round in turn. The ratios are medians of those of the rounds.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { join } from "node:path";
import { create, toBinary } from "@bufbuild/protobuf";
import { MongoClient } from "mongodb";
import { MongoMemoryReplSet } from "mongodb-memory-server-core";
import { v4 } from "uuid";
import { InvestorService } from "../gen/investor/v1/investor_pb.js";
import { load, type Result, type Task } from "./load.ts";

const rounds = Number(process.argv[2] ?? 5);
const memberCount = Number(process.argv[3] ?? 1);
const { createInvestor, getInvestor } = InvestorService.method;

interface Contestant {
  name: string;
  port: number;
  database: string;
  created: number;
}

const set = await MongoMemoryReplSet.create({
  replSet: { count: memberCount, storageEngine: "wiredTiger" },
});
const children: ChildProcess[] = [];
try {
  await compare();
} finally {
  for (const child of children) child.kill();
  await set.stop();
}

async function compare(): Promise<void> {
  const here = import.meta.dirname;
  const main = join(here, "../src/main.ts");
  const peer = await start("grpc-js, insertOne and findOne", "peer", (url) => [
    join(here, "peers/grpc-js.ts"),
    url,
  ]);
  const ours = await start("Investor Records", "ours", (url) => [
    main,
    ...["--database-url", url, "--grpc-port", "0", "--http-port", "0"],
  ]);
  const client = await MongoClient.connect(set.getUri());

  for (const [what, callers, calls] of [
    ["create", 128, 12_000],
    ["get", 128, 24_000],
    ["create", 1, 1_000],
    ["get", 1, 2_000],
  ] as const) {
    const pairs: [Result, Result][] = [];
    for (let round = 0; round <= rounds; round += 1) {
      const results: Result[] = [];
      for (const contestant of [peer, ours]) {
        const tasks =
          what === "create" ? creates(contestant, calls) : await gets(client, contestant, calls);
        results.push(await load(contestant.port, callers, tasks));
      }
      // The first round warms up.
      if (round > 0) pairs.push(results as [Result, Result]);
    }
    const median = (values: number[]) => values.sort((a, b) => a - b)[values.length >> 1] ?? 0;
    const speedup = median(pairs.map(([p, o]) => o.rate / p.rate));
    const latency = median(pairs.map(([p, o]) => o.p50 / p.p50));
    const rates = [0, 1].map((i) => Math.round(median(pairs.map((pair) => pair[i]?.rate ?? 0))));
    console.log(
      `${what}, ${callers} callers: ${rates.join(" and ")} a second, ` +
        `${speedup.toFixed(2)} times the rate, ${latency.toFixed(2)} times the median latency`,
    );
  }

  for (const { name, database, created } of [peer, ours]) {
    const stored = await client.db(database).collection("investors").countDocuments();
    if (stored !== created) throw new Error(`${name} stored ${stored} of ${created} records`);
  }
  await client.close();
}

async function start(
  name: string,
  database: string,
  args: (url: string) => string[],
): Promise<Contestant> {
  const child = spawn(process.execPath, args(set.getUri(database)));
  children.push(child);
  let output = "";
  for (const stream of [child.stdout, child.stderr]) {
    stream.on("data", (text) => {
      output += text;
    });
  }
  for (;;) {
    const [, port] = /(?:^|grpc:\/\/127.0.0.1:)(\d{2,})/m.exec(output) ?? [];
    if (port !== undefined) return { name, port: Number(port), database, created: 0 };
    if (child.exitCode !== null) throw new Error(`${name} ended: ${output}`);
    await new Promise((done) => setTimeout(done, 20));
  }
}

function creates(contestant: Contestant, count: number): Task[] {
  contestant.created += count;
  return Array.from({ length: count }, () => {
    const firstName = `Ada ${v4()}`;
    const request = create(createInvestor.input, {
      type: 1,
      firstName,
      middleName: "King",
      lastName: "Lovelace",
      addressLine1: "12 St James Square",
      addressLine2: "",
      city: "London",
      state: "",
      zipCode: "SW1Y 4JH",
      country: "gb",
      language: "en",
    });
    return {
      path: `/${createInvestor.parent.typeName}/${createInvestor.name}`,
      request: toBinary(createInvestor.input, request),
      isRight: (answer) => answer.includes(firstName),
    };
  });
}

async function gets(client: MongoClient, { database }: Contestant, count: number): Promise<Task[]> {
  const documents = await client
    .db(database)
    .collection("investors")
    .aggregate([{ $sample: { size: count } }, { $project: { firstName: 1 } }])
    .toArray();
  return documents.map(({ _id, firstName }) => ({
    path: `/${getInvestor.parent.typeName}/${getInvestor.name}`,
    request: toBinary(
      getInvestor.input,
      create(getInvestor.input, { id: _id.toUUID().toString() }),
    ),
    isRight: (answer) => answer.includes(firstName),
  }));
}
