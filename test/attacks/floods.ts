/** More of something than any caller needs, and clients that stop half-way or never read. */
import { setTimeout as delay } from "node:timers/promises";
import { inspect } from "node:util";
import { brotliCompressSync, gzipSync } from "node:zlib";
import { unfinishedHello } from "../support/client-hello.ts";
import {
  clientPreface,
  closedWindows,
  frameFlag,
  frameType,
  headerBlock,
  http2Frame,
  widestWindows,
} from "../support/http2-frames.ts";
import { frame } from "../support/raw-grpc.ts";
import {
  check,
  data,
  fieldsOf,
  http1Requests,
  listServices,
  openStream,
  plainJson,
  reflection,
  rpc,
  watch,
} from "./forms.ts";
import { type Attack, type Fields, type Hostile, http1, type Port } from "./target.ts";

const { headers, resetStream, settings, ping, windowUpdate, continuation } = frameType;
const { none, endHeaders, endStream } = frameFlag;
const priority = 0x2;
const unknown = 0xfa;

const json = { "content-type": "application/json" };
const create = `${rpc}/CreateInvestor`;
const list = `${rpc}/ListInvestors`;
const empty = frame(Buffer.alloc(0));
const fullPage = frame(Buffer.from([8, 0xe8, 7]));
const padding = headerBlock({ "x-padding": "x".repeat(100) });

/** The n-th of frames without end, of a client whose calls have this header block. */
type FrameOf = (n: number, call: Buffer) => Buffer;

const frameFloods: Record<string, FrameOf> = {
  "rapid resets": (n, call) =>
    Buffer.concat([
      http2Frame(headers, endHeaders, 2 * n + 1, call),
      http2Frame(resetStream, none, 2 * n + 1, Buffer.from([0, 0, 0, 8])),
    ]),
  // A window that grows by nothing is an error of the stream (RFC 9113, 6.9).
  "streams that the service has to reset": (n, call) =>
    Buffer.concat([
      http2Frame(headers, endHeaders, 2 * n + 1, call),
      http2Frame(windowUpdate, none, 2 * n + 1, Buffer.alloc(4)),
    ]),
  "calls without a message": (n, call) =>
    http2Frame(headers, endHeaders | endStream, 2 * n + 1, call),
  "streams that stay open": (n, call) => http2Frame(headers, endHeaders, 2 * n + 1, call),
  "CONTINUATION frames": (n, call) =>
    n === 0 ? http2Frame(headers, none, 1, call) : http2Frame(continuation, none, 1, padding),
  "empty CONTINUATION frames": (n, call) =>
    http2Frame(n === 0 ? headers : continuation, none, 1, n === 0 ? call : Buffer.alloc(0)),
  SETTINGS: (n) => http2Frame(settings, none, 0, Buffer.from([0, 1, 0, 0, (n % 2) * 16, 0])),
  PING: () => http2Frame(ping, none, 0, Buffer.alloc(8)),
  PRIORITY: (n) => http2Frame(priority, none, 2 * n + 1, Buffer.from([0, 0, 0, 0, 1])),
  "windows that grow": () => http2Frame(windowUpdate, none, 0, Buffer.from([0, 0, 0, 1])),
  "empty DATA": (n, call) =>
    n === 0 ? http2Frame(headers, endHeaders, 1, call) : data(1, Buffer.alloc(0)),
  "frames of an unknown type": () => http2Frame(unknown, none, 0, Buffer.alloc(1_000)),
  // A field of 4,000 bytes that goes into the dynamic table, and references to it (RFC 7541, 6).
  "header bombs": (n, call) => {
    const field = Buffer.concat([
      Buffer.from([0x40, 1, 0x61, 0x7f, 0xa1, 0x1e]),
      Buffer.alloc(4_000),
    ]);
    const head = http2Frame(headers, none, 2 * n + 1, Buffer.concat([call, field]));
    return Buffer.concat([
      head,
      http2Frame(continuation, endHeaders, 2 * n + 1, Buffer.alloc(16_000, 0xbe)),
    ]);
  },
};

/** Sends frames until the connection is closed or it was enough, and reads only after a while. */
function flood(frameOf: FrameOf): Attack {
  return async ({ kind, random, open, credentials }) => {
    // Without TLS, the HTTP port has no HTTP/2.
    const port = kind === "TLS" ? random.pick(["grpc", "http"] as const) : "grpc";
    const call = headerBlock(fieldsOf(random.pick([list, check, create]), credentials));
    const { socket, tcp, closes } = await open(port, "h2");
    socket.pause().write(clientPreface);
    let bytes = 0;
    for (let n = 0; n < 20_000 && bytes < 4e6 && !tcp.destroyed; n += 100) {
      const some = Buffer.concat(Array.from({ length: 100 }, (_, i) => frameOf(n + i, call)));
      bytes += some.length;
      if (!socket.write(some)) await delay(20);
      if (n > 2_000) socket.resume();
    }
    socket.resume();
    await closes(random.int(0, 500));
    socket.destroy();
  };
}

/** Opens a connection, writes bytes, and leaves after a while. */
async function hold(
  { random, open }: Hostile,
  port: Port,
  bytes: Buffer[],
  { isRead = true, next = Buffer.alloc(0) } = {},
): Promise<void> {
  const { socket, closes } = await open(port);
  if (!isRead) socket.pause();
  socket.write(Buffer.concat(bytes));
  await closes(random.int(200, 800));
  socket.write(next);
  await closes(random.int(200, 800));
  socket.destroy();
}

/** The beginning of a connection that makes the same call on many streams. */
function calls(count: number, path: string, fields: Fields, message: Uint8Array, isLast = false) {
  return Array.from({ length: count }, (_, i) => [
    openStream(2 * i + 1, fieldsOf(path, fields)),
    data(2 * i + 1, message, isLast),
  ]).flat();
}

const fillers = Object.fromEntries(
  Array.from({ length: 75 }, (_, i) => [`x-${i}`, "x".repeat(99)]),
);
const manyFields = Object.fromEntries(Array.from({ length: 5_000 }, (_, i) => [`x-${i}`, "x"]));
const unpacked = Buffer.alloc(20_000_000, 0x20);
const packed = { gzip: gzipSync(unpacked), br: brotliCompressSync(unpacked) };

/** Small requests that are large once unpacked, or that take long to parse. */
function bombs({ credentials, text }: Hostile): Buffer[] {
  const post = (path: string, fields: Fields, body: Uint8Array | string) =>
    http1("POST", path, { ...credentials, ...json, ...fields }, body);
  const web = { "content-type": "application/grpc-web+proto" };
  const members = Array.from({ length: 7_000 }, (_, i) => `"${i}":1`).join();
  return [
    ...Object.entries(packed).flatMap(([encoding, bytes]) => [
      post(create, { "content-encoding": encoding }, bytes),
      post(create, { ...web, "grpc-encoding": encoding }, frame(bytes, true)),
    ]),
    post("/v1/investors", { "content-encoding": "gzip" }, packed.gzip),
    post(create, web, Buffer.from([0, 255, 255, 255, 255, 0])),
    post(create, {}, '{"a":'.repeat(12_000)),
    post("/v1/investors", {}, `{${members}}`),
    // Groups of an unknown field in each other, without an end.
    post(
      create,
      { "content-type": "application/proto" },
      Buffer.alloc(60_000, "\xa3\x01", "latin1"),
    ),
    http1("GET", "/v1/investors", { ...credentials, ...manyFields }),
    http1("GET", `/v1/investors/${"x".repeat(1_000_000)}`, credentials),
    http1("GET", `/v1/investors?${"a&".repeat(7_000)}`, credentials),
    post("/v1/investors", { "transfer-encoding": "chunked" }, "1\r\nx\r\n".repeat(60_000)),
    http1("POST", "/v1/investors", { ...json, "content-length": "9" }, `${plainJson(text)}garbage`),
  ];
}

/** Attacks by quantity. */
export const floods: Record<string, Attack> = {
  ...Object.fromEntries(
    Object.entries(frameFloods).map(([name, frameOf]) => [`a flood of ${name}`, flood(frameOf)]),
  ),
  async bombs(hostile) {
    const { socket, closes } = await hostile.open("http");
    socket.write(hostile.random.pick(bombs(hostile)));
    await closes(1_000);
    socket.destroy();
  },
  "pipelines of thousands of requests": (hostile) => {
    const { random } = hostile;
    const requests = random.shuffle(http1Requests(hostile)).slice(0, random.int(1, 5));
    const pipeline = Array.from({ length: 2_000 }, () => random.pick(requests));
    return hold(hostile, "http", pipeline, { isRead: random.int(0, 1) === 0 });
  },
  async "messages that are too large and still being sent"({ random, open, credentials }) {
    const isGrpc = random.int(0, 1) === 0;
    const { socket, tcp, closes } = await open(isGrpc ? "grpc" : "http");
    const fields = { ...credentials, ...json, "content-length": "100000000" };
    const begin = Buffer.concat([clientPreface, openStream(1, fieldsOf(create, credentials))]);
    socket.write(isGrpc ? begin : http1("POST", "/v1/investors", fields));
    const bytes = Buffer.alloc(16_000, isGrpc ? 0x7f : " ");
    for (let i = 0; i < 300 && !tcp.destroyed; i += 1) {
      if (!socket.write(isGrpc ? data(1, bytes) : bytes)) await delay(5);
    }
    await closes(random.int(0, 500));
    socket.destroy();
  },
  "messages that stay a byte short, on every stream": (hostile) => {
    const { random, credentials } = hostile;
    const path = random.pick([create, create, check, reflection]);
    // As much as the window of the connection takes at first, on one stream or on all of them.
    const message = frame(Buffer.alloc(60_000)).subarray(0, random.pick([5, 400, 16_000]));
    const fields = { ...credentials, ...(random.int(0, 1) === 0 && fillers) };
    return hold(hostile, "grpc", [clientPreface, ...calls(128, path, fields, message)]);
  },
  "watches and reflection streams": (hostile) => {
    const path = hostile.random.pick([watch, reflection]);
    const message = path === watch ? empty : frame(listServices);
    return hold(hostile, "grpc", [clientPreface, ...calls(60, path, fillers, message)]);
  },
  "reflection requests by the packet": (hostile) => {
    const requests = Buffer.concat(Array(300).fill(frame(listServices)));
    const streams = calls(8, reflection, {}, requests);
    const next = Buffer.concat(Array(20).fill(data(1, requests)));
    return hold(hostile, "grpc", [clientPreface, widestWindows, ...streams], { next });
  },
  "health checks, a byte in each frame": (hostile) => {
    const bytes = Buffer.concat(Array(60_000).fill(data(1, Buffer.alloc(1))));
    return hold(hostile, "grpc", [clientPreface, ...calls(64, check, {}, Buffer.alloc(0)), bytes]);
  },
  "pages that are not read, over HTTP/2": (hostile) => {
    const pages = calls(128, list, hostile.credentials, fullPage, true);
    return hold(hostile, "grpc", [clientPreface, closedWindows, ...pages]);
  },
  "pages and whole lists that are not read, over HTTP/1.1": (hostile) => {
    const path = hostile.random.pick(["/v1/investors", "/v1/investors?pageSize=1000"]);
    const encoding = hostile.random.pick(["identity", "gzip", "br"]);
    const get = http1("GET", path, { ...hostile.credentials, "accept-encoding": encoding });
    return hold(hostile, "http", Array(12).fill(get), { isRead: false });
  },
  "pages and whole lists that are read as fast as they come": (hostile) => {
    const { random, credentials } = hostile;
    const encoding = random.pick(["identity", "gzip", "br"]);
    const fields = { ...credentials, ...json, "accept-encoding": encoding };
    const page = http1("POST", list, fields, '{"pageSize":1000}');
    const get = http1("GET", "/v1/investors", fields);
    return hold(hostile, "http", Array(8).fill(random.pick([page, get])));
  },
  async "connections that come and go"({ random, openTcp, open }) {
    const port = random.pick(["grpc", "http"] as const);
    const { socket, tcp, closes } = await random.pick([openTcp, open])(port);
    socket.write(random.pick([clientPreface, Buffer.from("GET / HTTP/1.1\r\n")]));
    await closes(random.int(0, 3));
    tcp.resetAndDestroy();
  },
};

/** A client that begins and does not go on, or does not read. */
interface Stop {
  port: Port;
  isBeforeTls?: boolean;
  first: Uint8Array;
  /** What follows every 200 ms. */
  next?: string;
  isRead?: boolean;
  /** In how many ms the service must have ended it. */
  endsInMs: number;
}

const nothing = Buffer.alloc(0);

function stops({ kind, credentials }: Hostile): Stop[] {
  const beginMs = 10_000;
  const requestMs = 3_000;
  const unreadMs = 30_000;
  const post = (fields: Fields) =>
    http1("POST", "/v1/investors", { ...credentials, ...json, ...fields });
  const page = http1("POST", list, { ...credentials, ...json }, '{"pageSize":1000}');
  const pages = calls(8, list, credentials, fullPage, true);
  const getPart = Buffer.from("GET /healthz HTTP/1.1\r\nhost: localhost\r\n");
  const ports: Port[] = ["grpc", "http"];
  const shake = { isBeforeTls: true, endsInMs: beginMs };
  return [
    ...ports.map((port) => ({ port, first: nothing, endsInMs: beginMs })),
    ...(kind === "TLS" ? ports : []).flatMap((port) => [
      { ...shake, port, first: nothing },
      { ...shake, port, first: unfinishedHello(1).subarray(0, 9) },
    ]),
    { port: "grpc", first: clientPreface.subarray(0, 10), endsInMs: beginMs },
    // Without the frame of settings, which has nine bytes.
    { port: "grpc", first: clientPreface.subarray(0, -9), endsInMs: beginMs },
    { port: "http", first: getPart, next: "x: y\r\n", endsInMs: beginMs },
    { port: "http", first: post({ "content-length": "60000" }), endsInMs: requestMs },
    { port: "http", first: post({ "content-length": "60000" }), next: " ", endsInMs: requestMs },
    {
      port: "http",
      first: post({ "transfer-encoding": "chunked" }),
      next: "1\r\n \r\n",
      endsInMs: requestMs,
    },
    ...(Object.keys(credentials).length > 0
      ? [
          {
            port: "grpc" as const,
            first: Buffer.concat([clientPreface, closedWindows, ...pages]),
            endsInMs: unreadMs,
          },
          {
            port: "http" as const,
            first: Buffer.concat(Array(14).fill(page)),
            // Whoever does not read learns of the end by writing; this is skipped before a request.
            next: "\r\n",
            isRead: false,
            endsInMs: unreadMs,
          },
        ]
      : []),
  ];
}

/** Waits until the service has ended what does not go on, and takes at most half a minute. */
export const stopHalfWay: Attack = async (hostile) => {
  const { random, open, openTcp } = hostile;
  const stop = random.pick(stops(hostile));
  const { socket, tcp, closes } = await (stop.isBeforeTls ? openTcp : open)(stop.port);
  if (stop.isRead === false) socket.pause();
  socket.write(stop.first);
  // A busy machine looks late.
  const end = performance.now() + stop.endsInMs * 1.2 + 3_000;
  while (!tcp.destroyed) {
    if (performance.now() > end) throw new Error(`it goes on: ${inspect(stop)}`);
    await closes(200);
    if (stop.next) socket.write(stop.next);
  }
  socket.destroy();
};
