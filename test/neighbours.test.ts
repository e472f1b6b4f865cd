/**
 * What one caller asks for at full speed is done in pieces, so that the calls of another are answered
 * between them. Pieces are counted, not timed: that holds on any machine.
 */
import { join } from "node:path";
import { create, toBinary } from "@bufbuild/protobuf";
import { createClient, createServiceImplSpec, type ServiceImpl } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { v7 } from "uuid";
import { afterAll, beforeAll, expect, it, onTestFinished } from "vitest";
import { Health } from "../gen/grpc/health/v1/health_pb.js";
import { ServerReflection } from "../gen/grpc/reflection/v1/reflection_pb.js";
import { GetInvestorRequestSchema, InvestorService } from "../gen/investor/v1/investor_pb.js";
import { createHealth } from "../src/endpoints/health.ts";
import { createReflection } from "../src/endpoints/reflection.ts";
import { createInvestorService } from "../src/service/investors.ts";
import { openSqlite } from "./support/copying.ts";
import { startEngine } from "./support/engine.ts";
import { sharedFolder } from "./support/folder.ts";
import { type Asked, startNeighbour } from "./support/neighbour.ts";
import { frame, messages, paths } from "./support/raw-grpc.ts";
import { aCreate, anInvestor } from "./support/records.ts";
import { createBody } from "./support/service.ts";

/**
 * The most pieces of each kind that may begin in a turn of the event loop: reads of the database, pages
 * to write, streams, and gets and creates, of which as many that waited may begin as new ones.
 */
const maxInTurn = { read: 1, page: 1, stream: 8, call: 128 };

type Kind = keyof typeof maxInTurn;

/** How many turns' worth of pieces may begin between a call and its reply, and how often each call is made. */
const maxTurns = 20;
const repetitions = 10;

const records = 5_000;
const aGet = frame(
  toBinary(GetInvestorRequestSchema, create(GetInvestorRequestSchema, { id: v7() })),
);
const grpc = { "content-type": "application/grpc", te: "trailers" };
const page = { headers: grpc, path: paths.list, body: messages.fullPage, calls: 8 };

/** What they ask for. */
const neighbours: Record<string, Asked> = {
  "one whole list": { path: "/v1/investors" },
  "six whole lists": { path: "/v1/investors", calls: 6 },
  "pages by gRPC": page,
  "pages by gRPC that are reset": { ...page, resetAfter: 100 },
  "pages by Connect in brotli": {
    ...page,
    headers: { "content-type": "application/proto", "accept-encoding": "br" },
    body: messages.fullPage.subarray(5),
  },
  "pages by REST": { path: "/v1/investors?pageSize=1000", calls: 8 },
  "256 gets at once": { headers: grpc, path: paths.get, body: aGet, calls: 256 },
  "256 creates at once": { headers: grpc, path: paths.create, body: createBody(), calls: 256 },
  "256 reflection streams, again and again": {
    headers: grpc,
    path: paths.reflect,
    body: messages.listServices,
    calls: 256,
  },
};

/** Counts pieces of work by the turn of the event loop in which they begin. */
function createMeter() {
  const zero = { read: 0, page: 0, stream: 0, call: 0 };
  let inTurn = { ...zero };
  let most = { ...zero };
  let total = { ...zero };
  let turn = setImmediate(endTurn);

  function endTurn(): void {
    turn = setImmediate(endTurn);
    inTurn = { ...zero };
  }

  return {
    count(kind: Kind): void {
      inTurn[kind] += 1;
      total[kind] += 1;
      most[kind] = Math.max(most[kind], inTurn[kind]);
    },
    reset(): void {
      most = { ...zero };
      total = { ...zero };
    },
    most: () => most,
    /** How many turns' worth of pieces have begun. */
    turns: () => Math.max(...kinds.map((kind) => total[kind] / maxInTurn[kind])),
    stop: () => clearImmediate(turn),
  };
}

const kinds = Object.keys(maxInTurn) as Kind[];
const meter = createMeter();
const folder = sharedFolder();

/** The service in this process, with its pieces counted. */
async function start() {
  const store = await openSqlite(join(folder, "investors.db"));
  const investors = Array.from({ length: records }, () => anInvestor());
  await Promise.all(investors.map((investor) => store.insert(investor)));
  const { createInvestor, getInvestor, listInvestors } = createInvestorService({
    ...store,
    list(range, signal) {
      // A store reads nothing for a call that is over.
      if (!signal?.aborted) meter.count("read");
      return store.list(range, signal);
    },
  });
  const service: ServiceImpl<typeof InvestorService> = {
    createInvestor(...call) {
      meter.count("call");
      return createInvestor(...call);
    },
    getInvestor(...call) {
      meter.count("call");
      return getInvestor(...call);
    },
    async listInvestors(...call) {
      const reply = await listInvestors(...call);
      meter.count("page");
      return reply;
    },
  };
  const health = createHealth([], () => true);
  const reflection = createReflection();
  const engine = await startEngine({
    services: [createServiceImplSpec<typeof InvestorService>(InvestorService, service)],
    publicServices: [
      createServiceImplSpec<typeof Health>(Health, health),
      createServiceImplSpec<typeof ServerReflection>(ServerReflection, {
        serverReflectionInfo(...call) {
          meter.count("stream");
          return reflection.serverReflectionInfo(...call);
        },
      }),
    ],
  });
  const transport = createGrpcTransport({ baseUrl: `http://127.0.0.1:${engine.port}` });
  const caller = createClient(InvestorService, transport);
  const checker = createClient(Health, transport);
  return {
    port: engine.port,
    get: (n: number) => caller.getInvestor({ id: investors[n]?.id ?? "" }),
    create: () => caller.createInvestor(aCreate()),
    check: () => checker.check({}),
    async stop() {
      engine.destroy();
      await store.close();
    },
  };
}

let service: Awaited<ReturnType<typeof start>>;
beforeAll(async () => {
  service = await start();
});
afterAll(async () => {
  meter.stop();
  await service.stop();
});

/** Makes calls one after the other; returns the most turns' worth of pieces that one waited for. */
async function callAlone(call: (n: number) => Promise<unknown>): Promise<number> {
  let longest = 0;
  for (let n = 0; n < repetitions; n += 1) {
    const before = meter.turns();
    await call(n);
    longest = Math.max(longest, meter.turns() - before);
  }
  return longest;
}

it.each(Object.entries(neighbours))(
  "beside %s, calls are answered between the pieces",
  async (_name, asked) => {
    const { stop } = await startNeighbour(asked, service.port);
    onTestFinished(stop);
    meter.reset();
    expect(await callAlone(service.get)).toBeLessThanOrEqual(maxTurns);
    expect(await callAlone(service.check)).toBeLessThanOrEqual(maxTurns);
    // How long it takes is up to the disk.
    await callAlone(service.create);
    const most = meter.most();
    for (const kind of kinds) expect(most[kind], kind).toBeLessThanOrEqual(maxInTurn[kind]);
    expect(meter.turns()).toBeGreaterThan(0);
  },
);
