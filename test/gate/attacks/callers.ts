/** Callers with credentials who do nothing wrong, on a thread that no attack slows down. */
import { once } from "node:events";
import { setTimeout as delay } from "node:timers/promises";
import { setDefaultCACertificates } from "node:tls";
import { parentPort, Worker, workerData } from "node:worker_threads";
import { clientsOf } from "../../support/clients.ts";
import { aCreate, institution } from "../../support/records.ts";
import type { Target } from "./target.ts";

const timeoutMs = 5_000;
const pauseMs = 20;

/** How the good callers fared during an attack. */
export interface Figures {
  readonly calls: number;
  /** The protocol and the error of each call that failed. */
  readonly failures: string[];
  readonly p99Ms: number;
}

type Addresses = Target["addresses"];

/** Starts callers on each protocol, who wait. */
export function startCallers({ addresses }: Target) {
  const thread = new Worker(new URL(import.meta.url), { workerData: { addresses } });
  return {
    begin: () => thread.postMessage("begin"),
    /** Lets them go on until they have made this many calls, and returns their figures. */
    async end(minCalls: number): Promise<Figures> {
      thread.postMessage(minCalls);
      const [figures] = await once(thread, "message");
      return figures;
    },
    stop: () => thread.terminate(),
  };
}

/** Calls that a caller makes in turn. */
type Calls = (() => Promise<unknown>)[];

function expectSame(actual: unknown, expected: unknown): void {
  if (actual !== expected) throw new Error(`${actual} is not ${expected}`);
}

function callsBy(client: ReturnType<typeof clientsOf>["gRPC"], mark: string): Calls {
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

/** The same over plain JSON, with more headers. */
function restCalls({ httpUrl, token, mark }: Addresses, more: Record<string, string>): Calls {
  const record = { ...institution, lastName: `${mark} Capital`, city: `${mark} Springs` };
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json", ...more };
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
    () => ask("/readyz"),
  ];
}

function callersOf(addresses: Addresses): Record<string, Calls> {
  const { port, ca, token, mark } = addresses;
  const options = { authorization: `Bearer ${token}`, ...(ca && { tls: { ca } }) };
  const clients = clientsOf({ port }, options);
  const overHttp2 = clientsOf({ port }, { ...options, httpVersion: "2" });
  return {
    gRPC: callsBy(clients.gRPC, mark),
    Connect: callsBy(clients.Connect, mark),
    "gRPC-Web": callsBy(clients["gRPC-Web"], mark),
    "Connect over HTTP/2": callsBy(overHttp2.Connect, mark),
    REST: restCalls(addresses, {}),
    "REST on new connections": restCalls(addresses, { connection: "close" }),
  };
}

/** Makes calls from one message to the next, and replies with figures. */
function followMessages(callers: Record<string, Calls>): void {
  const durations: number[] = [];
  const failures: string[] = [];
  let wanted = 0;
  let running: Promise<unknown> = Promise.resolve();

  async function callInTurn([name, calls]: [string, Calls]): Promise<void> {
    for (let i = 0; durations.length < wanted; i += 1) {
      const start = performance.now();
      await calls[i % calls.length]?.().catch((error) => failures.push(`${name}: ${error}`));
      durations.push(performance.now() - start);
      await delay(pauseMs);
    }
  }

  parentPort?.on("message", async (message: "begin" | number) => {
    if (message === "begin") {
      durations.length = 0;
      failures.length = 0;
      wanted = Number.POSITIVE_INFINITY;
      running = Promise.all(Object.entries(callers).map(callInTurn));
      return;
    }
    wanted = message;
    await running;
    const p99Ms = durations.toSorted((a, b) => a - b)[Math.floor(0.99 * durations.length)] ?? 0;
    parentPort?.postMessage({ calls: durations.length, failures, p99Ms } satisfies Figures);
  });
}

if (workerData?.addresses !== undefined) {
  const { addresses }: { addresses: Addresses } = workerData;
  if (addresses.ca) setDefaultCACertificates([addresses.ca]);
  followMessages(callersOf(addresses));
}
