import { Agent as HttpAgent, request as requestHttp } from "node:http";
import { Agent as HttpsAgent, request as requestHttps } from "node:https";
import { setTimeout as delay } from "node:timers/promises";
import { parentPort, workerData } from "node:worker_threads";
import { createClient, type Interceptor, type Transport } from "@connectrpc/connect";
import {
  createConnectTransport,
  createGrpcTransport,
  createGrpcWebTransport,
} from "@connectrpc/connect-node";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { aCreate } from "../support/records.ts";
import type { GoodCallersData, Outcome } from "./good-callers.ts";
import { plainJson, secret, strangersText } from "./requests.ts";

const { grpcUrl, httpUrl, ca, token } = workerData as GoodCallersData;
const timeoutMs = 5_000;
const pauseMs = 20;

/** Calls that follow each other. */
type Steps = (() => Promise<void>)[];

const authorize: Interceptor = (next) => (req) => {
  if (token !== undefined) req.header.set("authorization", `Bearer ${token}`);
  return next(req);
};

function expectSame(one: unknown, other: unknown): void {
  if (one !== other) throw new Error(`${one} is not ${other}`);
}

function stepsBy(transport: Transport): Steps {
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
      expectSame(investors.length > 0, true);
    },
  ];
}

const agent =
  ca === undefined
    ? new HttpAgent({ keepAlive: true, maxSockets: 1 })
    : new HttpsAgent({ keepAlive: true, maxSockets: 1, ca });

/** The JSON that the HTTP port replies with. */
function rest(method: string, path: string, body?: string): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const headers = {
      ...(token !== undefined && { authorization: `Bearer ${token}` }),
      ...(body !== undefined && { "content-type": "application/json" }),
    };
    const request = ca === undefined ? requestHttp : requestHttps;
    const req = request(httpUrl + path, { method, agent, headers });
    req.setTimeout(timeoutMs, () => req.destroy(new Error("no reply in time")));
    req.on("error", reject).on("response", (res) => {
      let text = "";
      res.setEncoding("utf8").on("data", (chunk) => {
        text += chunk;
      });
      res.on("error", reject).on("end", () => {
        if (res.statusCode === 200) resolve(JSON.parse(text));
        else reject(new Error(`${res.statusCode} ${text}`));
      });
    });
    req.end(body);
  });
}

function restSteps(): Steps {
  const body = plainJson.replaceAll(strangersText, secret);
  let id = "";
  return [
    async () => {
      ({ id } = (await rest("POST", "/v1/investors", body)) as { id: string });
    },
    async () => {
      const record = (await rest("GET", `/v1/investors/${id}`)) as { id: string };
      expectSame(record.id, id);
    },
    async () => {
      const page = (await rest("GET", "/v1/investors?pageSize=10")) as unknown[];
      expectSame(page.length > 0, true);
    },
    async () => {
      await rest("GET", "/readyz");
    },
  ];
}

const options = { interceptors: [authorize], nodeOptions: { ca } };
const http = { ...options, baseUrl: httpUrl };
const callers: [string, Steps][] = [
  ["gRPC", stepsBy(createGrpcTransport({ ...options, baseUrl: grpcUrl }))],
  ["Connect", stepsBy(createConnectTransport({ ...http, httpVersion: "1.1" }))],
  ["gRPC-Web", stepsBy(createGrpcWebTransport({ ...http, httpVersion: "1.1" }))],
  ["REST", restSteps()],
];
if (ca !== undefined) {
  const transport = createConnectTransport({ ...http, httpVersion: "2" });
  callers.push(["Connect on HTTP/2", stepsBy(transport)]);
}

let durations: number[] = [];
let failures: string[] = [];
/** How many calls to make; endless until the end is asked for. */
let wanted = 0;
let running: Promise<unknown> = Promise.resolve();

async function callOn(name: string, steps: Steps): Promise<void> {
  for (let i = 0; durations.length < wanted; i += 1) {
    const start = performance.now();
    try {
      await steps[i % steps.length]?.();
    } catch (error) {
      failures.push(`${name}: ${error}`);
    }
    durations.push(performance.now() - start);
    await delay(pauseMs);
  }
}

parentPort?.on("message", async (message: "begin" | number) => {
  if (message === "begin") {
    durations = [];
    failures = [];
    wanted = Number.POSITIVE_INFINITY;
    running = Promise.all(callers.map(([name, steps]) => callOn(name, steps)));
    return;
  }
  wanted = message;
  await running;
  const sorted = durations.toSorted((a, b) => a - b);
  const p99Ms = sorted[Math.ceil(0.99 * sorted.length) - 1] ?? 0;
  parentPort?.postMessage({ calls: sorted.length, failures, p99Ms } satisfies Outcome);
});
parentPort?.postMessage("ready");
