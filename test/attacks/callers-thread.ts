import { Agent as HttpAgent, request as requestHttp } from "node:http";
import { Agent as HttpsAgent, request as requestHttps } from "node:https";
import { monitorEventLoopDelay } from "node:perf_hooks";
import { setTimeout as delay } from "node:timers/promises";
import { parentPort, workerData } from "node:worker_threads";
import { createClient, type Interceptor, type Transport } from "@connectrpc/connect";
import {
  createConnectTransport,
  createGrpcTransport,
  createGrpcWebTransport,
} from "@connectrpc/connect-node";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { aCreate, institution } from "../support/records.ts";
import type { Destination, Figures } from "./callers.ts";

const { grpcUrl, httpUrl, ca, token, secret } = workerData as Destination;
const timeoutMs = 5_000;
const pauseMs = 20;

const authorization = `Bearer ${token}`;
const authorize: Interceptor = (next) => (req) => {
  req.header.set("authorization", authorization);
  return next(req);
};
const options = { interceptors: [authorize], nodeOptions: { ca } };
const overGrpc = createGrpcTransport({ ...options, baseUrl: grpcUrl });
const overHttp1 = { ...options, baseUrl: httpUrl, httpVersion: "1.1" } as const;

/** Calls that a caller makes in turn. */
type Calls = (() => Promise<void>)[];

function expectSame(actual: unknown, expected: unknown): void {
  if (actual !== expected) throw new Error(`${actual} is not ${expected}`);
}

function callsBy(transport: Transport): Calls {
  const client = createClient(InvestorService, transport);
  const request = aCreate({ lastName: `${secret}-name`, city: `${secret}-city` });
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

/** Calls by plain JSON: on one connection that stays open, or on a new one each. */
function restCalls(keepAlive: boolean): Calls {
  const agentOptions = { keepAlive, maxSockets: 1 };
  const agent = ca ? new HttpsAgent({ ...agentOptions, ca }) : new HttpAgent(agentOptions);
  const ask = (method: string, path: string, body?: object) =>
    new Promise<Record<string, unknown>>((resolve, reject) => {
      const headers = { authorization, "content-type": "application/json" };
      const request = ca ? requestHttps : requestHttp;
      const req = request(httpUrl + path, { method, agent, headers });
      req.setTimeout(timeoutMs, () => req.destroy(new Error("no reply in time")));
      req.on("error", reject).on("response", async (res) => {
        const text = Buffer.concat(await res.toArray().catch(() => [])).toString();
        if (res.statusCode === 200) resolve(JSON.parse(text));
        else reject(new Error(`${res.statusCode} ${text}`));
      });
      req.end(body && JSON.stringify(body));
    });
  let id: unknown;
  return [
    async () => {
      const record = { ...institution, lastName: `${secret} Capital`, city: `${secret} Springs` };
      ({ id } = await ask("POST", "/v1/investors", record));
    },
    async () => expectSame((await ask("GET", `/v1/investors/${id}`)).id, id),
    async () => expectSame((await ask("GET", "/v1/investors?pageSize=10")).length, 10),
    async () => void (await ask("GET", "/readyz")),
  ];
}

const callers: Record<string, Calls> = {
  gRPC: callsBy(overGrpc),
  Connect: callsBy(createConnectTransport(overHttp1)),
  "gRPC-Web": callsBy(createGrpcWebTransport(overHttp1)),
  REST: restCalls(true),
  "REST on new connections": restCalls(false),
};
if (ca) {
  const overHttp2 = { ...options, baseUrl: httpUrl, httpVersion: "2" } as const;
  callers["Connect on HTTP/2"] = callsBy(createConnectTransport(overHttp2));
}

/** Stores records of which 130 make a page of a mebibyte. */
async function fill(): Promise<void> {
  const text = "\u{1F600}".repeat(250) + secret;
  const long = { firstName: text, middleName: text, lastName: text, city: text, state: text };
  const record = aCreate({ ...long, addressLine1: text, addressLine2: text, zipCode: text });
  const client = createClient(InvestorService, overGrpc);
  for (let i = 0; i < 26; i += 1) {
    await Promise.all(Array.from({ length: 10 }, () => client.createInvestor(record)));
  }
}

const lateness = monitorEventLoopDelay({ resolution: 5 });
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
    lateness.reset();
    lateness.enable();
    running = Promise.all(Object.entries(callers).map((each) => callInTurn(...each)));
    return;
  }
  wanted = message;
  await running;
  lateness.disable();
  const p99Ms = durations.toSorted((a, b) => a - b)[Math.floor(0.99 * durations.length)] ?? 0;
  const lateMs = lateness.percentile(99) / 1e6;
  parentPort?.postMessage({ calls: durations.length, failures, p99Ms, lateMs } satisfies Figures);
});
await fill();
parentPort?.postMessage("ready");
