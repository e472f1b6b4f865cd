/** More of something than anybody needs, and little that unpacks to much. */

import { setTimeout as delay } from "node:timers/promises";
import { brotliCompressSync, gzipSync } from "node:zlib";
import { expect } from "vitest";
import {
  clientPreface,
  frameFlag,
  frameType,
  headerBlock,
  http2Frame,
} from "../support/http2-frames.ts";
import { frame } from "../support/raw-grpc.ts";
import { type Attack, describeAttacks } from "./describe-attacks.ts";
import { pour } from "./pour.ts";
import { grpcHeaders, http1, http1Requests, rpc, withTrailers } from "./requests.ts";
import { type PortName, type Target, within } from "./target.ts";

const { data, headers, resetStream, settings, ping, windowUpdate, continuation } = frameType;
const { none, endHeaders, endStream } = frameFlag;
const priority = 0x2;

const call = headerBlock({
  ...grpcHeaders(`${rpc}/ListInvestors`),
  ":scheme": "http",
  ":authority": "localhost",
});
const padding = headerBlock({ "x-padding": "x".repeat(100) });

const padded = 0x8;
const onlyPadding = Buffer.concat([Buffer.from([255]), Buffer.alloc(255)]);

/** A literal of 4,000 bytes that goes into the dynamic table, and a reference to it (RFC 7541, 6). */
const tableBomb = Buffer.concat([
  call,
  Buffer.from([0x40, 1, 0x61, 0x7f, 0xa1, 0x1e]),
  Buffer.alloc(4_000, "a"),
]);
const references = Buffer.alloc(16_000, 0xbe);

/** Frames without end; each function makes the n-th of them. */
const frames: Record<string, (n: number) => Buffer> = {
  "streams that are reset at once": (n) =>
    Buffer.concat([
      http2Frame(headers, endHeaders, 2 * n + 1, call),
      http2Frame(resetStream, none, 2 * n + 1, Buffer.from([0, 0, 0, 8])),
    ]),
  "streams that make the service reset them": (n) =>
    Buffer.concat([
      http2Frame(headers, endHeaders, 2 * n + 1, call),
      // A window that grows by nothing is an error of the stream (RFC 9113, 6.9).
      http2Frame(windowUpdate, none, 2 * n + 1, Buffer.alloc(4)),
    ]),
  "streams that end at once": (n) => http2Frame(headers, endHeaders | endStream, 2 * n + 1, call),
  "streams that stay open": (n) => http2Frame(headers, endHeaders, 2 * n + 1, call),
  "headers without an end": (n) =>
    n === 0 ? http2Frame(headers, none, 1, call) : http2Frame(continuation, none, 1, padding),
  "headers without an end that are empty": (n) =>
    n === 0
      ? http2Frame(headers, none, 1, call)
      : http2Frame(continuation, none, 1, Buffer.alloc(0)),
  settings: () => http2Frame(settings, none, 0, Buffer.from([0, 4, 0, 1, 0, 0])),
  "settings that shrink the table": (n) =>
    http2Frame(settings, none, 0, Buffer.from([0, 1, 0, 0, (n % 2) * 16, 0])),
  pings: () => http2Frame(ping, none, 0, Buffer.alloc(8)),
  priorities: (n) => http2Frame(priority, none, 2 * n + 1, Buffer.from([0, 0, 0, 0, 1])),
  "windows that grow": () => http2Frame(windowUpdate, none, 0, Buffer.from([0, 0, 0, 1])),
  "empty data": (n) =>
    n === 0 ? http2Frame(headers, endHeaders, 1, call) : http2Frame(data, none, 1, Buffer.alloc(0)),
  "padding only": (n) =>
    n === 0 ? http2Frame(headers, endHeaders, 1, call) : http2Frame(data, padded, 1, onlyPadding),
  "references to a long header": (n) =>
    Buffer.concat([
      http2Frame(headers, none, 2 * n + 1, tableBomb),
      http2Frame(continuation, endHeaders, 2 * n + 1, references),
    ]),
  "frames of unknown types": () => http2Frame(0xfa, none, 0, Buffer.alloc(1_000)),
};

const maxFrames = 5_000;
const maxBytes = 4_000_000;

/** Sends frames until the connection is closed or there were enough; nothing is read at first. */
async function flood(target: Target, port: PortName, frameOf: (n: number) => Buffer) {
  const { socket, tcp, closed } = await target.open(port, { protocol: "h2" });
  const drained = (timeoutMs: number) =>
    within(new Promise((resolve) => socket.once("drain", () => resolve(true))), timeoutMs, false);
  socket.pause();
  socket.write(clientPreface);
  let sent = 0;
  for (let bytes = 0; sent < maxFrames && bytes < maxBytes && !tcp.destroyed; sent += 100) {
    const some = Buffer.concat(Array.from({ length: 100 }, (_, i) => frameOf(sent + i)));
    bytes += some.length;
    if (socket.write(some) || (await drained(200))) continue;
    // Who reads nothing does not learn of the end.
    socket.resume();
    if (!(await drained(1_000))) break;
  }
  socket.resume();
  await closed(100);
  return sent;
}

const floods = Object.entries(frames).map(
  ([name, frameOf]): Attack => ({
    name: `a flood of ${name}`,
    async run(target) {
      const ports: PortName[] = target.kind === "TLS" ? ["grpc", "http"] : ["grpc"];
      const counts = await Promise.all(ports.map((port) => flood(target, port, frameOf)));
      return counts.reduce((sum, each) => sum + each, 0);
    },
  }),
);

const unpacked = Buffer.alloc(50_000_000, 0x20);
const gzipped = gzipSync(unpacked);
const brotlied = brotliCompressSync(unpacked);
const method = `${rpc}/CreateInvestor`;

/** Nests a message in itself: groups of an unknown field, whose ends are missing. */
const nestedGroups = Buffer.alloc(60_000, Buffer.from([0xa3, 1]));

/** Requests by HTTP/1.1 that are small and unpack to much, or cost much to parse. */
const bombs: Record<string, (fields: Record<string, string>) => Buffer> = {
  "Connect, gzip": (fields) =>
    http1(
      "POST",
      method,
      { ...fields, "content-type": "application/json", "content-encoding": "gzip" },
      gzipped,
    ),
  "Connect, br": (fields) =>
    http1(
      "POST",
      method,
      { ...fields, "content-type": "application/proto", "content-encoding": "br" },
      brotlied,
    ),
  "Connect by GET, gzip": (fields) =>
    http1(
      "GET",
      `${rpc}/ListInvestors?connect=v1&encoding=proto&compression=gzip&base64=1&message=${gzipSync(Buffer.alloc(8_000_000)).toString("base64url")}`,
      fields,
    ),
  "gRPC-Web, gzip": (fields) =>
    http1(
      "POST",
      method,
      { ...fields, "content-type": "application/grpc-web+proto", "grpc-encoding": "gzip" },
      frame(gzipped, true),
    ),
  "gRPC-Web, br": (fields) =>
    http1(
      "POST",
      method,
      { ...fields, "content-type": "application/grpc-web+proto", "grpc-encoding": "br" },
      frame(brotlied, true),
    ),
  "gRPC-Web that says 4 GiB": (fields) =>
    http1(
      "POST",
      method,
      { ...fields, "content-type": "application/grpc-web+proto" },
      Buffer.from([0, 255, 255, 255, 255, 0]),
    ),
  "REST, gzip": (fields) =>
    http1(
      "POST",
      "/v1/investors",
      { ...fields, "content-type": "application/json", "content-encoding": "gzip" },
      gzipped,
    ),
  "a body of 1 MB": (fields) =>
    http1(
      "POST",
      "/v1/investors",
      { ...fields, "content-type": "application/json" },
      Buffer.alloc(1_000_000, 0x20),
    ),
  "JSON that nests": (fields) =>
    http1(
      "POST",
      method,
      { ...fields, "content-type": "application/json" },
      '{"a":'.repeat(12_000),
    ),
  "JSON of many members": (fields) =>
    http1(
      "POST",
      "/v1/investors",
      { ...fields, "content-type": "application/json" },
      `{${Array.from({ length: 7_000 }, (_, i) => `"${i}":1`).join()}}`,
    ),
  "a message that nests": (fields) =>
    http1("POST", method, { ...fields, "content-type": "application/proto" }, nestedGroups),
  "10,000 headers": (fields) =>
    http1("GET", "/v1/investors", {
      ...fields,
      ...Object.fromEntries(Array.from({ length: 10_000 }, (_, i) => [`x-${i}`, "x"])),
    }),
  "a header of 1 MB": (fields) =>
    http1("GET", "/v1/investors", { ...fields, "x-long": "x".repeat(1_000_000) }),
  "a path of 1 MB": (fields) => http1("GET", `/v1/investors/${"x".repeat(1_000_000)}`, fields),
  "a query of 15,000 parameters": (fields) =>
    http1("GET", `/v1/investors?${"a&".repeat(7_000)}`, fields),
};

const bombsByHttp1: Attack = {
  name: "bombs by HTTP/1.1",
  async run(target) {
    const rounds = 3;
    for (const [name, bomb] of Object.entries(bombs)) {
      const bytes = bomb(target.greedy);
      const connections = Array.from({ length: rounds }, async () => {
        const { socket, received, closed } = await target.open("http", { isKnown: true });
        socket.write(bytes);
        const reply = () => /^HTTP\/1.1 (\d+)/.exec(received())?.[1];
        const isOver = async () => reply() !== undefined || (await closed(20));
        await expect.poll(isOver, { timeout: 5_000, message: `a reply to ${name}` }).toBe(true);
        // A mistake of the caller, never of the service. gRPC-Web says so past the status.
        expect(["200", "400", "413", "414", "415", "429", "431", undefined], name).toContain(
          reply(),
        );
      });
      await Promise.all(connections);
    }
    return rounds * Object.keys(bombs).length;
  },
};

const bombsByGrpc: Attack = {
  name: "bombs by gRPC",
  async run(target) {
    const gzip = grpcHeaders(method, { ...target.greedy, "grpc-encoding": "gzip" });
    const plain = grpcHeaders(method, target.greedy);
    const calls: [Record<string, string>, Buffer][] = [
      [gzip, frame(gzipped, true)],
      [gzip, frame(Buffer.from("no gzip"), true)],
      [plain, frame(gzipped, true)],
      [plain, Buffer.from([0, 255, 255, 255, 255, 0])],
      [plain, frame(nestedGroups)],
      [plain, frame(Buffer.alloc(1_000_000))],
      [plain, Buffer.concat(Array(1_000).fill(frame(Buffer.alloc(0))))],
      [{ ...plain, "x-long": "x".repeat(60_000) }, frame(Buffer.alloc(0))],
      [{ ...plain, "grpc-timeout": "99999999H" }, frame(nestedGroups)],
    ];
    for (const [fields, body] of calls) {
      const session = await target.session("grpc");
      const replies = await Promise.all([1, 2, 3].map(() => target.ask(session, fields, body)));
      for (const { grpcStatus } of replies)
        expect(grpcStatus, JSON.stringify(fields)).not.toBe("0");
      session.destroy();
    }
    return 3 * calls.length;
  },
};

const churn: Attack = {
  name: "connections that come and go",
  async run(target) {
    const count = target.kind === "TLS" ? 200 : 600;
    let left = count;
    const come = async () => {
      for (; left > 0; left -= 1) {
        const { socket, tcp } = await target.open(left % 2 === 0 ? "grpc" : "http", {
          protocol: left % 4 < 2 ? "h2" : "http/1.1",
          // The gRPC port has no HTTP/1.1.
          mayFail: left % 4 === 2,
        });
        socket.write(left % 3 === 0 ? clientPreface : "GET / HTTP/1.1\r\n");
        if (left % 5 === 0) tcp.resetAndDestroy();
        else tcp.destroy();
        await delay(2);
      }
    };
    await Promise.all([come(), come(), come(), come()]);
    return count;
  },
};

const pipeline: Attack = {
  name: "pipelines of thousands of requests",
  async run(target) {
    const count = 4_000;
    const requests = Object.values(http1Requests({})).filter((each) => !each.includes("expect"));
    const connections = Array.from({ length: 4 }, async (_, i) => {
      const { socket, closed } = await target.open("http");
      const some = Array.from(
        { length: count / 4 },
        (_, n) => requests[(n * 7 + i) % requests.length] as Buffer,
      );
      socket.write(Buffer.concat(some));
      await closed(1_500);
    });
    await Promise.all(connections);
    return count;
  },
};

const chunks: Attack = {
  name: "bodies in chunks of a byte",
  run: (target) =>
    pour(target, {
      first: http1("POST", "/v1/investors", { "transfer-encoding": "chunked" }),
      bytes: Buffer.from("1\r\nx\r\n".repeat(20_000)),
    }),
};

const trailers: Attack = {
  name: "requests with a thousand trailers",
  run: (target) => pour(target, { bytes: withTrailers("/v1/investors/x", {}) }),
};

// After 32 headers, Node.js handles what came before them at once.
const headersInParts = Object.fromEntries(Array.from({ length: 40 }, (_, i) => [`x${i}`, "x"]));
const manyHeaders: Attack = {
  name: "pipelines of requests with many headers",
  run(target) {
    const some = Array(400).fill(http1("GET", "/v1/investors/x", headersInParts));
    return pour(target, { bytes: Buffer.concat(some) });
  },
};

const manyHeadersWhenShort: Attack = {
  name: "pipelines of requests with many headers, when memory is short",
  on: "TLS",
  isAlone: true,
  async run(target, random) {
    // Idle connections of a caller stay, which are most of what the service may take.
    const all = Array.from({ length: 10 }, async () => {
      for (let i = 0; i < 94; i += 1) {
        const { socket } = await target.open("http", { isKnown: true });
        socket.write(http1("GET", "/v1/investors?pageSize=100", target.greedy));
      }
    });
    await Promise.all(all);
    let count = 0;
    for (let i = 0; i < 2; i += 1) count += await manyHeaders.run(target, random);
    return count;
  },
};

describeAttacks("floods", [
  ...floods,
  bombsByHttp1,
  bombsByGrpc,
  churn,
  pipeline,
  chunks,
  trailers,
  manyHeaders,
  manyHeadersWhenShort,
]);
