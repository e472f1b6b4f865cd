/** Clients that take their time, stop half-way, or never read. */
import { setTimeout as delay } from "node:timers/promises";
import { expect } from "vitest";
import {
  clientPreface,
  closedWindows,
  frameFlag,
  frameType,
  headerBlock,
  http2Frame,
} from "../support/http2-frames.ts";
import { type Attack, describeAttacks } from "./describe-attacks.ts";
import { grpcHeaders, http1, http1Requests, plainJson, rpc } from "./requests.ts";
import type { Connection, PortName, Target } from "./target.ts";

/** Twice the request timeout of the service, and some time for a busy machine, in ms. */
const patienceMs = 8_000;

const clients = 20;
const { data, headers, continuation } = frameType;
const { none, endHeaders, endStream } = frameFlag;

const forms = {
  ...grpcHeaders(`${rpc}/CreateInvestor`),
  ":scheme": "http",
  ":authority": "localhost",
};

/** Clients that send a beginning and then drops, which the service must not wait for. */
function trickle(
  name: string,
  port: PortName,
  protocol: "http/1.1" | "h2",
  start: (target: Target) => Buffer,
  drop: string | Buffer,
): Attack {
  return {
    name: `clients that trickle ${name}`,
    // The HTTP port has HTTP/2 on TLS only.
    ...(protocol === "h2" && port === "http" && { on: "TLS" }),
    async run(target) {
      const connections = await Promise.all(
        Array.from({ length: clients }, async () => {
          const connection = await target.open(port, { protocol, isKnown: true });
          connection.socket.write(start(target));
          const timer = setInterval(() => connection.socket.write(drop), 200);
          connection.tcp.once("close", () => clearInterval(timer));
          return connection;
        }),
      );
      if (protocol === "h2") {
        // The connection may live on, its calls may not.
        const calls = () => target.metric("investor_records_rpc_server_calls_in_flight");
        await delay(2_000);
        await expect.poll(calls, { timeout: patienceMs, interval: 200 }).toBeLessThan(10);
      } else {
        for (const { closed } of connections) expect(await closed(patienceMs), "closed").toBe(true);
      }
      return clients;
    },
  };
}

const json = { "content-type": "application/json" };
const create = (target: Target, more: Record<string, string>) =>
  http1("POST", "/v1/investors", { ...target.greedy, ...json, ...more });

/** The preface and the headers of a call, which is left open. */
const openStream = ({ greedy }: Target, flags: number = endHeaders) =>
  Buffer.concat([
    clientPreface,
    http2Frame(headers, flags, 1, headerBlock({ ...forms, ...greedy })),
  ]);

const trickles = [
  trickle(
    "their headers",
    "http",
    "http/1.1",
    () => Buffer.from("GET /v1/investors HTTP/1.1\r\nhost: localhost\r\n"),
    "x-more: 1\r\n",
  ),
  trickle(
    "their body",
    "http",
    "http/1.1",
    (target) => create(target, { "content-length": "60000" }),
    " ",
  ),
  trickle(
    "their chunks",
    "http",
    "http/1.1",
    (target) => create(target, { "transfer-encoding": "chunked" }),
    "1\r\n \r\n",
  ),
  trickle(
    "their message by gRPC",
    "grpc",
    "h2",
    (target) =>
      Buffer.concat([
        openStream(target),
        http2Frame(data, none, 1, Buffer.from([0, 0, 0, 255, 255])),
      ]),
    http2Frame(data, none, 1, Buffer.alloc(1)),
  ),
  trickle(
    "their message by HTTP/2",
    "http",
    "h2",
    openStream,
    http2Frame(data, none, 1, Buffer.alloc(1)),
  ),
  trickle(
    "their headers by HTTP/2",
    "grpc",
    "h2",
    (target) => openStream(target, none),
    http2Frame(continuation, none, 1, Buffer.alloc(1)),
  ),
];

/** Holds connections open for a while, whatever was sent on them. */
async function hold(count: number, holdMs: number, open: (i: number) => Promise<unknown>) {
  await Promise.all(Array.from({ length: count }, (_, i) => open(i)));
  await delay(holdMs);
  return count;
}

/** Lists by gRPC of so many streams. */
const lists = ({ greedy }: Target, count: number) =>
  Array.from({ length: count }, (_, i) => [
    http2Frame(
      headers,
      endHeaders,
      2 * i + 1,
      headerBlock({ ...forms, ":path": `${rpc}/ListInvestors`, ...greedy }),
    ),
    http2Frame(data, endStream, 2 * i + 1, Buffer.alloc(5)),
  ]).flat();

const others: Attack[] = [
  {
    name: "windows of size 0",
    run: (target) =>
      hold(clients, 1_000, async () => {
        const { socket } = await target.open("grpc", { protocol: "h2", isKnown: true });
        socket.write(Buffer.concat([clientPreface, closedWindows, ...lists(target, 20)]));
      }),
  },
  {
    name: "windows that a setting takes below 0",
    run: (target) =>
      hold(clients, 1_000, async () => {
        const { socket } = await target.open("grpc", { protocol: "h2", isKnown: true });
        socket.write(Buffer.concat([clientPreface, ...lists(target, 1), closedWindows]));
      }),
  },
  {
    name: "whole lists and references that nobody reads",
    run: (target) =>
      hold(clients, 1_500, async (i) => {
        const { socket } = await target.open("http", { isKnown: true });
        socket.pause();
        const requests = http1Requests(target.greedy);
        const names = ["REST list", "REST page", "reference", "Connect ListInvestors"];
        const one = requests[names[i % names.length] as string] as Buffer;
        // Nobody keeps a share of the slots for others where nobody says who calls.
        const times = target.kind === "TLS" ? 60 : 20;
        socket.write(Buffer.concat(Array(times).fill(one)));
      }),
  },
  {
    name: "connections that say nothing",
    run: (target) =>
      hold(200, 1_000, async (i) => {
        const { tcp } = await target.openTcp(i % 2 === 0 ? "grpc" : "http");
        if (i % 3 === 0) tcp.end();
      }),
  },
  {
    name: "clients that close their half at once",
    run: (target) =>
      hold(100, 1_000, async (i) => {
        const requests = Object.values(http1Requests(target.greedy));
        const { socket } = await target.open("http", { isKnown: true });
        socket.end(requests[i % requests.length] as Buffer);
      }),
  },
  {
    name: "clients that close their half in the middle",
    run: (target) =>
      hold(100, 1_000, async (i) => {
        const isGrpc = i % 2 === 0;
        const options = { protocol: isGrpc ? "h2" : "http/1.1", isKnown: true } as const;
        const { socket } = await target.open(isGrpc ? "grpc" : "http", options);
        socket.end(
          isGrpc
            ? openStream(target)
            : create(target, { "content-length": String(plainJson.length) }),
        );
      }),
  },
  {
    name: "handshakes of TLS that never end",
    on: "TLS",
    async run(target) {
      const waiting: [string, Connection][] = [];
      for (const port of ["grpc", "http"] as const) {
        for (let i = 0; i < 20; i += 1) {
          const connection = await target.openTcp(port);
          // A record that says how much follows, and does not.
          if (i % 2 === 0) connection.tcp.write(Buffer.from([22, 3, 1, 2, 0, 1]));
          waiting.push([`${port}, ${i % 2 === 0 ? "a part" : "nothing"}`, connection]);
        }
      }
      // The timeout of a handshake is 10 s.
      const ends = await Promise.all(
        waiting.map(async ([name, { closed }]) => ((await closed(14_000)) ? [] : [name])),
      );
      expect([...new Set(ends.flat())], "connections that stay open").toEqual([]);
      return waiting.length;
    },
  },
];

describeAttacks("slow", [...trickles, ...others]);
