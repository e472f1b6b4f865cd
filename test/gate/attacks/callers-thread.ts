import { setTimeout as delay } from "node:timers/promises";
import { setDefaultCACertificates } from "node:tls";
import { parentPort, workerData } from "node:worker_threads";
import { clientsOf } from "../../support/clients.ts";
import { aCreate, institution } from "../../support/records.ts";
import type { Figures } from "./callers.ts";
import type { Target } from "./target.ts";

const { ca, token, mark, httpUrl, port } = workerData as Target["addresses"];
const timeoutMs = 5_000;
const pauseMs = 20;
if (ca) setDefaultCACertificates([ca]);

const authorization = `Bearer ${token}`;
const options = { authorization, ...(ca && { tls: { ca } }) };
const overHttp1 = clientsOf({ port }, options);
const overHttp2 = clientsOf({ port }, { ...options, httpVersion: "2" });

/** Calls that a caller makes in turn. */
type Calls = (() => Promise<void>)[];

function expectSame(actual: unknown, expected: unknown): void {
  if (actual !== expected) throw new Error(`${actual} is not ${expected}`);
}

function callsBy(client: typeof overHttp1.gRPC): Calls {
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
  gRPC: callsBy(overHttp1.gRPC),
  Connect: callsBy(overHttp1.Connect),
  "gRPC-Web": callsBy(overHttp1["gRPC-Web"]),
  REST: restCalls({}),
  "REST on new connections": restCalls({ connection: "close" }),
  ...(ca && { "Connect over HTTP/2": callsBy(overHttp2.Connect) }),
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
