/** Callers with credentials who do nothing wrong, on a thread that no attack slows down. */
import { once } from "node:events";
import { setTimeout as delay } from "node:timers/promises";
import { setDefaultCACertificates } from "node:tls";
import { parentPort, Worker, workerData } from "node:worker_threads";
import { clientsOf } from "../../support/clients.ts";
import { institution } from "../../support/records.ts";
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

/** Starts callers on each protocol, which go on until they are stopped. */
export function startCallers({ addresses }: Target) {
  const thread = new Worker(new URL(import.meta.url), { workerData: { addresses } });
  return {
    /** Waits until they have made this many calls since the last time, and returns their figures. */
    async figures(minCalls: number): Promise<Figures> {
      thread.postMessage(minCalls);
      const [figures] = await once(thread, "message");
      return figures;
    },
    stop: () => thread.terminate(),
  };
}

interface Created {
  id: string;
}

/** What callers call, by any protocol. */
interface Client {
  createInvestor(record: object): Promise<Created>;
  getInvestor(record: Created): Promise<Created>;
  listInvestors(page: { pageSize: number }): Promise<{ investors: Created[] }>;
}

/** The service over plain JSON, with more headers. */
function restClient({ httpUrl, token }: Addresses, more: Record<string, string>): Client {
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json", ...more };
  const ask = async (path: string, init: RequestInit = {}) => {
    const signal = AbortSignal.timeout(timeoutMs);
    const reply = await fetch(`${httpUrl}/v1/investors${path}`, { ...init, headers, signal });
    const text = await reply.text();
    if (reply.status !== 200) throw new Error(`${reply.status} ${text}`);
    return JSON.parse(text);
  };
  return {
    createInvestor: (record) => ask("", { method: "POST", body: JSON.stringify(record) }),
    getInvestor: ({ id }) => ask(`/${id}`),
    listInvestors: async ({ pageSize }) => ({ investors: await ask(`?pageSize=${pageSize}`) }),
  };
}

/** The clients, and the type of a record that they create. */
function clientsFor(
  addresses: Addresses,
): [name: string, client: Client, type: 2 | "institution"][] {
  const { port, ca, token } = addresses;
  const options = { authorization: `Bearer ${token}`, timeoutMs, ...(ca && { tls: { ca } }) };
  const clients = clientsOf({ port }, options);
  const overHttp2 = clientsOf({ port }, { ...options, httpVersion: "2" });
  return [
    ["gRPC", clients.gRPC, 2],
    ["Connect", clients.Connect, 2],
    ["gRPC-Web", clients["gRPC-Web"], 2],
    ["Connect over HTTP/2", overHttp2.Connect, 2],
    ["REST", restClient(addresses, {}), "institution"],
    ["REST on new connections", restClient(addresses, { connection: "close" }), "institution"],
  ];
}

async function call(addresses: Addresses): Promise<void> {
  const { mark } = addresses;
  let durations: number[] = [];
  let failures: string[] = [];

  /** Makes a call that has to have this result. */
  async function time<T>(name: string, call: Promise<T>, isRight: (result: T) => boolean) {
    const start = performance.now();
    const failed = (error: unknown) => void failures.push(`${name}: ${error}`);
    const result = await call.catch(failed);
    if (result && !isRight(result)) failed(JSON.stringify(result));
    durations.push(performance.now() - start);
    await delay(pauseMs);
    return result;
  }

  parentPort?.on("message", async (minCalls: number) => {
    while (durations.length < minCalls) await delay(pauseMs);
    const p99Ms = durations.toSorted((a, b) => a - b)[Math.floor(0.99 * durations.length)] ?? 0;
    parentPort?.postMessage({ calls: durations.length, failures, p99Ms } satisfies Figures);
    durations = [];
    failures = [];
  });
  const calling = clientsFor(addresses).map(async ([name, client, type]) => {
    const record = { ...institution, type, lastName: `${mark}-name`, city: `${mark}-city` };
    let known = { id: "" };
    for (;;) {
      const created = await time(name, client.createInvestor(record), ({ id }) => id !== "");
      known = created ?? known;
      if (known.id === "") continue;
      await time(name, client.getInvestor(known), ({ id }) => id === known.id);
      const list = client.listInvestors({ pageSize: 10 });
      await time(name, list, ({ investors }) => investors.length === 10);
    }
  });
  await Promise.all(calling);
}

if (workerData?.addresses !== undefined) {
  const { addresses }: { addresses: Addresses } = workerData;
  if (addresses.ca) setDefaultCACertificates([addresses.ca]);
  await call(addresses);
}
