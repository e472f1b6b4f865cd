/** Bytes that are no requests, or not quite, and connections that end at any instant. */

import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import { Duplex } from "node:stream";
import { setTimeout as delay } from "node:timers/promises";
import { connect as connectTls, type TLSSocket } from "node:tls";
import { expect } from "vitest";
import type { Random } from "../support/random.ts";
import { frame } from "../support/raw-grpc.ts";
import { type Attack, describeAttacks } from "./describe-attacks.ts";
import { mutate, mutateFrames } from "./mutate.ts";
import {
  customers,
  grpcHeaders,
  http1,
  http1Requests,
  http2Frames,
  jsonMessages,
  messages,
  rpc,
} from "./requests.ts";
import { type Connection, type PortName, type Target, within } from "./target.ts";

const connectionsAtOnce = 8;

/** Attacks by so many connections, some at a time. */
async function byConnections(
  count: number,
  random: Random,
  attack: (random: Random) => Promise<void>,
): Promise<number> {
  let left = count;
  const attackOn = async () => {
    for (; left > 0; left -= 1) await attack(random);
  };
  await Promise.all(Array.from({ length: connectionsAtOnce }, attackOn));
  return count;
}

/** Sends bytes in one to four pieces, and ends the connection in one way or another. */
async function send({ socket, tcp, closed }: Connection, bytes: Buffer, random: Random) {
  const cuts = Array.from({ length: random.int(0, 3) }, () => random.int(0, bytes.length));
  const edges = [0, ...cuts.toSorted((a, b) => a - b), bytes.length];
  for (const [i, start] of edges.slice(0, -1).entries()) {
    if (tcp.destroyed) return;
    await new Promise((resolve) => socket.write(bytes.subarray(start, edges[i + 1]), resolve));
    if (random.int(0, 2) === 0) await delay(random.int(0, 5));
  }
  const ending = random.pick(["reset", "reset", "leave", "half-close", "wait"]);
  if (ending === "half-close") socket.end();
  if (ending !== "leave") await closed(random.int(0, ending === "reset" ? 10 : 50));
  if (ending === "reset") tcp.resetAndDestroy();
  else socket.destroy();
}

/** Header fields with credentials, or in half of the cases without. */
function someFields({ greedy }: Target, random: Random) {
  const isKnown = random.int(0, 1) === 0;
  return { fields: isKnown ? greedy : {}, isKnown };
}

/** What a client of TLS says first. */
async function clientHello(): Promise<Buffer> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  const client = connectTls({ socket: connect(port, "127.0.0.1"), ALPNProtocols: ["h2"] });
  client.on("error", () => {});
  const [socket] = await once(server, "connection");
  const [hello] = await once(socket, "data");
  client.destroy();
  socket.destroy();
  server.close();
  return hello;
}

/** TLS on a connection that others write to as well. */
function encryptBehind(tcp: Socket, ca: string | undefined): TLSSocket {
  const socket = new Duplex({
    read() {},
    write: (chunk, _, done) => void tcp.write(chunk, () => done()),
  });
  tcp.on("data", (chunk) => void socket.push(chunk));
  const options = { socket, ca, servername: "localhost", ALPNProtocols: ["h2"] };
  return connectTls(options).on("error", () => {});
}

const ports: PortName[] = ["grpc", "http"];

/** The status of gRPC for a fault of the service, which no caller can cause. */
const internal = "13";

const methodNames = ["CreateInvestor", "GetInvestor", "ListInvestors"] as const;

/** Header fields that somebody reads, and values that mean something to them. */
const fieldValues: Record<string, string[]> = {
  "content-type": [
    "application/json",
    "application/grpc-web-text",
    "application/grpc;x",
    "application/connect+json",
    "application/json; charset=utf-16",
    "text/plain",
    "multipart/form-data",
  ],
  "content-encoding": ["gzip", "br", "identity", "deflate", "gzip, gzip", "zstd"],
  "accept-encoding": ["gzip", "br;q=0", "*", "identity;q=0"],
  "grpc-encoding": ["gzip", "identity", "snappy"],
  "grpc-accept-encoding": ["gzip", "x"],
  "grpc-timeout": ["1S", "0n", "99999999H", "999999999S", "-1S", "1", "S"],
  "connect-timeout-ms": ["1", "0", "9999999999", "99999999999", "-1", "1e3"],
  "connect-protocol-version": ["1", "2"],
  "connect-content-encoding": ["gzip"],
  "idempotency-key": ['"9b2c1d4e-5f60-4a7b-8c9d-0e1f2a3b4c5d"', '""', '"', "x".repeat(300)],
  traceparent: ["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "ff-0-0-0"],
  "x-user-agent": ["x"],
  accept: ["application/xml", "*/*;q=0"],
  expect: ["100-continue", "200-ok"],
  "if-none-match": ["*"],
  range: ["bytes=0-1", "bytes=-1"],
  "http2-settings": ["AAMAAABkAARAAAAAAAIAAAAA"],
  te: ["trailers", "chunked"],
  origin: ["http://localhost"],
  "access-control-request-method": ["POST"],
};

/** Some of these fields, a quarter of them changed into what a header can still carry. */
function oddFields(random: Random): Record<string, string> {
  const names = random.shuffle(Object.keys(fieldValues)).slice(0, random.int(1, 4));
  return Object.fromEntries(
    names.map((name) => {
      const value = random.pick(fieldValues[name] ?? []);
      const changed = random.int(0, 3) === 0 ? mutate(Buffer.from(value), random) : value;
      return [
        name,
        String(changed)
          .replaceAll(/[^!-~]/g, "")
          .slice(0, 4_000),
      ];
    }),
  );
}

/** Makes a call whose message or header fields are changed, and expects a reply to it. */
async function callOddly(target: Target, random: Random): Promise<void> {
  const method = random.pick(methodNames);
  const path = `${rpc}/${method}`;
  const isJson = random.int(0, 1) === 0;
  const codec = isJson ? "json" : "proto";
  const message = customers(isJson ? Buffer.from(jsonMessages[method]) : messages[method]);
  const hasOddMessage = random.int(0, 1) === 0;
  const body = hasOddMessage ? mutate(message, random).subarray(0, 60_000) : message;
  const odd = hasOddMessage ? {} : oddFields(random);
  const kind = random.pick(["gRPC", "gRPC-Web", "Connect", "REST", "GET"]);
  const sent = JSON.stringify(body.toString("latin1")).slice(0, 200);
  const name = `${kind} ${method} ${JSON.stringify(odd).slice(0, 300)} ${sent}`;
  if (kind === "gRPC") {
    // Node.js as a client sends none but this.
    if (odd.te !== undefined) odd.te = "trailers";
    delete odd["http2-settings"];
    const session = await target.session("grpc");
    const reply = await target.ask(
      session,
      grpcHeaders(path, { ...target.greedy, ...odd }),
      frame(body),
    );
    session.destroy();
    // No status at all is a stream that was reset, as it is for headers against the rules.
    expect([200, 400, 403, 413, 415, 431, 501, undefined], name).toContain(reply.status);
    expect(reply.grpcStatus, name).not.toBe(internal);
    return;
  }
  const type = kind === "gRPC-Web" ? `application/grpc-web+${codec}` : `application/${codec}`;
  const headers = { ...target.greedy, "content-type": type, ...odd };
  const query = `connect=v1&encoding=${codec}&base64=1&message=${body.toString("base64url")}`;
  const { socket, received, closed } = await target.open("http", { isKnown: true });
  const last = { ...headers, connection: "close" };
  const content = kind === "gRPC-Web" ? frame(body) : body;
  if (kind === "GET") socket.write(http1("GET", `${path}?${query.slice(0, 12_000)}`, last));
  else socket.write(http1("POST", kind === "REST" ? "/v1/investors" : path, last, content));
  expect(await closed(8_000), `closed: ${name}`).toBe(true);
  const text = received().replace(/^HTTP\/1.1 100.*\r\n\r\n/, "");
  // Of the statuses of a fault, only those that say that something is not supported.
  expect(text.slice(0, 100), name).toMatch(/^HTTP\/1.1 ([234]\d\d|501|504|505) /);
  expect(text, name).not.toMatch(/grpc-status: ?13\b/);
}

const attacks: Attack[] = [
  {
    name: "HTTP/1.1 that is mutated",
    run: (target, random) =>
      byConnections(150, random, async () => {
        const { fields, isKnown } = someFields(target, random);
        const requests = Object.values(http1Requests(fields));
        const pipeline = Array.from({ length: random.int(1, 3) }, () => random.pick(requests));
        const port = random.pick(["http", "http", "http", "grpc"] as const);
        // The gRPC port has no HTTP/1.1.
        const connection = await target.open(port, { isKnown, mayFail: port === "grpc" });
        await send(connection, mutate(Buffer.concat(pipeline), random), random);
      }),
  },
  {
    name: "HTTP/2 that is mutated",
    run: (target, random) =>
      byConnections(150, random, async () => {
        const { fields, isKnown } = someFields(target, random);
        const connection = await target.open(random.pick(ports), { protocol: "h2", isKnown });
        await send(connection, mutateFrames(http2Frames(fields), random), random);
      }),
  },
  {
    name: "handshakes of TLS that are mutated",
    async run(target, random) {
      const hello = await clientHello();
      return byConnections(150, random, async () => {
        const connection = await target.openTcp(random.pick(ports));
        await send(connection, mutate(hello, random), random);
      });
    },
  },
  {
    name: "bytes within TLS that are mutated, of records that are encrypted",
    on: "TLS",
    run: (target, random) =>
      byConnections(60, random, async () => {
        const port = random.pick(ports);
        const connection = await target.openTcp(port);
        const tls = encryptBehind(connection.tcp, target.ca);
        await within(
          once(tls, "secureConnect").catch(() => {}),
          5_000,
          undefined,
        );
        const [preface = Buffer.alloc(0)] = http2Frames({});
        tls.write(preface);
        // Not by TLS, so that the service can decrypt no more.
        await send(connection, mutate(preface, random), random);
        tls.destroy();
      }),
  },
  {
    name: "messages and header fields that are mutated",
    run: (target, random) => byConnections(250, random, () => callOddly(target, random)),
  },
  {
    name: "pipelines of HTTP/1.1 that are reset",
    run: (target, random) =>
      byConnections(150, random, async () => {
        const { fields, isKnown } = someFields(target, random);
        const requests = Object.values(http1Requests(fields));
        const one = random.pick(requests);
        const pipeline = Array.from({ length: random.int(1, 6) }, () =>
          random.int(0, 1) === 0 ? one : random.pick(requests),
        );
        const { socket, tcp } = await target.open("http", { isKnown });
        await new Promise((resolve) => socket.write(Buffer.concat(pipeline), resolve));
        if (random.int(0, 1) === 0) await delay(random.int(0, 20));
        tcp.resetAndDestroy();
      }),
  },
  {
    name: "calls by HTTP/2 that are reset",
    run: (target, random) =>
      byConnections(100, random, async () => {
        const { fields, isKnown } = someFields(target, random);
        const [preface = Buffer.alloc(0), ...calls] = http2Frames(fields);
        const options = { protocol: "h2", isKnown } as const;
        const { socket, tcp } = await target.open(random.pick(ports), options);
        const bytes = Buffer.concat([preface, ...calls.slice(0, random.int(1, calls.length))]);
        await new Promise((resolve) => socket.write(bytes, resolve));
        if (random.int(0, 1) === 0) await delay(random.int(0, 20));
        if (random.int(0, 2) === 0) tcp.destroy();
        else tcp.resetAndDestroy();
      }),
  },
  {
    name: "answers that are cut while they are sent",
    run: (target, random) =>
      byConnections(60, random, async () => {
        const { "REST list": list, reference } = http1Requests(target.greedy) as Record<
          string,
          Buffer
        >;
        const { socket, tcp } = await target.open("http", { isKnown: true });
        socket.write(Buffer.concat(Array(20).fill(random.pick([list, reference]))));
        socket.once("data", () => tcp.resetAndDestroy());
        await delay(random.int(5, 100));
        tcp.resetAndDestroy();
      }),
  },
];

describeAttacks("bytes", attacks);
