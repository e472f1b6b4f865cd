import { setTimeout as delay } from "node:timers/promises";
import { setDefaultCACertificates } from "node:tls";
import { parentPort, workerData } from "node:worker_threads";
import { createClient, type Interceptor, type Transport } from "@connectrpc/connect";
import {
  createConnectTransport,
  createGrpcTransport,
  createGrpcWebTransport,
} from "@connectrpc/connect-node";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { aCreate, institution } from "../support/records.ts";
import type { Figures } from "./callers.ts";
import type { Target } from "./target.ts";

const { grpcUrl, httpUrl, ca, token, mark } = workerData as Target["addresses"];
const timeoutMs = 5_000;
const pauseMs = 20;
if (ca) setDefaultCACertificates([ca]);

const authorization = `Bearer ${token}`;
const authorize: Interceptor = (next) => (req) => {
  req.header.set("authorization", authorization);
  return next(req);
};
const interceptors = [authorize];
const overGrpc = createGrpcTransport({ baseUrl: grpcUrl, interceptors });
const overHttp1 = { baseUrl: httpUrl, interceptors, httpVersion: "1.1" as const };
const overHttp2 = { ...overHttp1, httpVersion: "2" as const };

/** Calls that a caller makes in turn. */
type Calls = (() => Promise<void>)[];

function expectSame(actual: unknown, expected: unknown): void {
  if (actual !== expected) throw new Error(`${actual} is not ${expected}`);
}

function callsBy(transport: Transport): Calls {
  const client = createClient(InvestorService, transport);
  const request = aCreate({ lastName: `${mark}-name`, city: `${mark}-city` });
  let id = "";
  return [
    async () => {
      ({ id } = await client.createInvestor(request, { timeoutMs }));
    },
    async () => {
      const { firstName } = await client.getInvestor({ id }, { timeoutMs });
      expectSame(firstName, request.firstName);
    },
    async () => {
      const { investors } = await client.listInvestors({ pageSize: 10 }, { timeoutMs });
      expectSame(investors.length, 10);
    },
  ];
}

function restCalls(fields: Record<string, string>): Calls {
  const record = { ...institution, lastName: `${mark} Capital`, city: `${mark} Springs` };
  const headers = { authorization, "content-type": "application/json", ...fields };
  const ask = async (path: string, init: RequestInit = {}) => {
    const signal = AbortSignal.timeout(timeoutMs);
    const reply = await fetch(httpUrl + path, { ...init, headers, signal });
    const text = await reply.text();
    if (reply.status !== 200) throw new Error(`${reply.status} ${text}`);
    return JSON.parse(text);
  };
  let id: unknown;
  return [
    async () => {
      ({ id } = await ask("/v1/investors", { method: "POST", body: JSON.stringify(record) }));
    },
    async () => expectSame((await ask(`/v1/investors/${id}`)).id, id),
    async () => expectSame((await ask("/v1/investors?pageSize=10")).length, 10),
    async () => void (await ask("/readyz")),
  ];
}

const callers: Record<string, Calls> = {
  gRPC: callsBy(overGrpc),
  Connect: callsBy(createConnectTransport(overHttp1)),
  "gRPC-Web": callsBy(createGrpcWebTransport(overHttp1)),
  REST: restCalls({}),
  "REST on new connections": restCalls({ connection: "close" }),
  ...(ca && { "Connect over HTTP/2": callsBy(createConnectTransport(overHttp2)) }),
};

let durations: number[] = [];
let failures: string[] = [];
let wanted = 0;
let running: Promise<unknown> = Promise.resolve();

async function callInTurn(name: string, calls: Calls): Promise<void> {
  for (let i = 0; durations.length < wanted; i += 1) {
    const start = performance.now();
    await calls[i % calls.length]?.().catch((error) => failures.push(`${name}: ${error}`));
    durations.push(performance.now() - start);
    await delay(pauseMs);
  }
}

parentPort?.on("message", async (message: "begin" | number) => {
  if (message === "begin") {
    durations = [];
    failures = [];
    wanted = Number.POSITIVE_INFINITY;
    running = Promise.all(Object.entries(callers).map((each) => callInTurn(...each)));
    return;
  }
  wanted = message;
  await running;
  const p99Ms = durations.toSorted((a, b) => a - b)[Math.floor(0.99 * durations.length)] ?? 0;
  parentPort?.postMessage({ calls: durations.length, failures, p99Ms } satisfies Figures);
});

/** Stores two pages of a mebibyte each. */
const text = "\u{1F600}".repeat(250) + mark;
const long = { firstName: text, middleName: text, lastName: text, city: text, state: text };
const record = aCreate({ ...long, addressLine1: text, addressLine2: text, zipCode: text });
const client = createClient(InvestorService, overGrpc);
for (let i = 0; i < 26; i += 1) {
  await Promise.all(Array.from({ length: 10 }, () => client.createInvestor(record)));
}
parentPort?.postMessage("ready");
