/** Little that is sent, of which much is kept or made at once. */

import { setTimeout as delay } from "node:timers/promises";
import { brotliCompressSync, gzipSync } from "node:zlib";
import { expect } from "vitest";
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
import { type Attack, describeAttacks } from "./describe-attacks.ts";
import {
  customersText,
  grpcHeaders,
  http1,
  messages,
  plainJson,
  rpc,
  strangersText,
} from "./requests.ts";
import { type OpenOptions, type PortName, type Target, within } from "./target.ts";

const health = "/grpc.health.v1.Health";
const reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
const unknownFrame = 0x42;

/** A call that anybody may make, whose message is still to come. */
const beginCall = (path: string) =>
  Buffer.concat([
    clientPreface,
    http2Frame(
      frameType.headers,
      frameFlag.endHeaders,
      1,
      headerBlock({ ":scheme": "http", ":authority": "localhost", ...grpcHeaders(path) }),
    ),
  ]);

const sendData = (bytes: Buffer, stream = 1, flag: number = frameFlag.none) =>
  http2Frame(frameType.data, flag, stream, bytes);

/** Opens a call on streams of a connection whose replies are not to be sent. */
const beginCalls = (streams: number[], fields: Record<string, string>) =>
  Buffer.concat([
    clientPreface,
    closedWindows,
    ...streams.map((stream) =>
      http2Frame(frameType.headers, frameFlag.endHeaders, stream, headerBlock(fields)),
    ),
  ]);

const oddNumbers = (count: number) => Array.from({ length: count }, (_, i) => 2 * i + 1);

/** A watch by HTTP/1.1, which what follows has to wait for. */
const watch = http1(
  "POST",
  `${health}/Watch`,
  { "content-type": "application/connect+json" },
  frame(Buffer.from("{}")),
);

/** Begins a call on 40 connections, and then sends a byte at a time among frames without a meaning. */
async function trickle(target: Target, begin: Buffer, rounds: number): Promise<number> {
  const meaningless = http2Frame(unknownFrame, 0, 0, Buffer.alloc(16_000));
  const one = Buffer.concat([sendData(Buffer.alloc(1)), ...Array(4).fill(meaningless)]);
  const connections = await Promise.all(
    Array.from({ length: 40 }, () => target.open("grpc", { protocol: "h2" })),
  );
  for (const { socket } of connections) socket.write(begin);
  for (let i = 0; i < rounds; i += 1) {
    for (const { socket } of connections) socket.write(one);
    await delay(30);
  }
  return connections.length * rounds;
}

/** Writes the same on so many connections by HTTP/1.1, and gives the replies a moment. */
async function writeToAll(target: Target, count: number, bytes: Buffer): Promise<void> {
  for (let i = 0; i < count; i += 1) {
    const { socket } = await target.open("http", { isKnown: true });
    socket.write(bytes);
  }
  await delay(2_000);
}

/** Headers that are about as long as they may be. */
const fillers = Object.fromEntries(
  Array.from({ length: 75 }, (_, i) => [`x-${i}`, "x".repeat(100)]),
);

/** What is written on all connections. */
interface Wave extends Omit<OpenOptions, "port"> {
  port: PortName;
  /** What is written first, and replied to. */
  first?: Buffer;
  bytes: Buffer;
  /** Whether what comes back is read. */
  isRead?: boolean;
}

/**
 * Opens as many connections as there may be beside those of good callers, some of which are closed
 * to make room, and then writes the same on all of them; three times.
 */
async function sendInWaves(
  target: Target,
  { port, first, bytes, isRead = false, ...options }: Wave,
): Promise<number> {
  const count = 1_020;
  for (let i = 0; i < 3; i += 1) {
    const connections = await Promise.all(
      Array.from({ length: count }, () => target.open(port, { ...options, mayFail: true })),
    );
    if (first) {
      for (const { socket } of connections) socket.write(first);
      await delay(1_500);
    }
    for (const { socket, tcp } of connections) {
      if (!isRead) tcp.pause();
      socket.write(bytes);
    }
    await delay(isRead ? 5_000 : 1_000);
  }
  return 3 * count;
}

const attacks: Attack[] = [
  ...[`${health}/Watch`, `${health}/Check`, reflection].map(
    (path): Attack => ({
      name: `bytes among frames without a meaning to ${path}`,
      run: (target) => trickle(target, beginCall(path), 60),
    }),
  ),
  {
    name: "bytes among frames without a meaning to reflection whose replies are not read",
    async run(target) {
      // The host, which comes back twice, and the list of services.
      const host = Buffer.concat([Buffer.from([0x0a, 0xa0, 0x1f]), Buffer.alloc(4_000, "x")]);
      const asking = sendData(frame(Buffer.concat([host, Buffer.from([0x3a, 0])])));
      const begin = Buffer.concat([
        beginCall(reflection),
        closedWindows,
        ...Array(10).fill(asking),
      ]);
      return trickle(target, begin, 150);
    },
  },
  {
    name: "packets of requests by HTTP/2 whose replies all fit its windows",
    on: "TLS",
    async run(target) {
      const fields = { ":method": "GET", ":scheme": "https", ":authority": "localhost" };
      const block = headerBlock({ ...fields, ":path": "/openapi.json" });
      const flags = frameFlag.endHeaders | frameFlag.endStream;
      const gets = Array.from({ length: 60 }, (_, i) =>
        http2Frame(frameType.headers, flags, 2 * i + 1, block),
      );
      const packet = Buffer.concat([clientPreface, widestWindows, ...gets]);
      for (let i = 0; i < 50; i += 1) {
        const connections = await Promise.all(
          Array.from({ length: 10 }, () => target.open("http", { protocol: "h2" })),
        );
        for (const { socket, tcp } of connections) {
          tcp.pause();
          socket.write(packet);
        }
      }
      await delay(2_000);
      return 500 * gets.length;
    },
  },
  {
    name: "a message of which each byte has a frame",
    async run(target) {
      const { socket } = await target.open("grpc", { protocol: "h2" });
      socket.write(beginCall(reflection));
      const prefix = Buffer.from([0, 0, 0, 0xfd, 0xe8]);
      const bytes = Array(60_000).fill(sendData(Buffer.from([0x0a])));
      socket.write(Buffer.concat([sendData(prefix), ...bytes]));
      await delay(2_000);
      return bytes.length;
    },
  },
  {
    name: "requests of fields that are unknown, which all end at once",
    async run(target) {
      const streams = oddNumbers(100);
      const begin = beginCalls(streams, {
        ...{ ":scheme": "http", ":authority": "localhost" },
        ...grpcHeaders(`${rpc}/GetInvestor`, target.greedy),
      });
      const id = Buffer.from(`\n$${"0190a0b0-0000-7000-8000-000000000000"}`);
      const message = frame(Buffer.concat([id, Buffer.alloc(64_900, Buffer.from([0x18, 0]))]));
      const bodies = streams.flatMap((stream) =>
        Array.from({ length: 5 }, (_, i) =>
          sendData(message.subarray(13_000 * i, 13_000 * (i + 1)), stream),
        ),
      );
      const ends = streams.map((stream) => sendData(Buffer.alloc(0), stream, frameFlag.endStream));
      const connections = await Promise.all(
        Array.from({ length: 2 }, () => target.open("grpc", { protocol: "h2" })),
      );
      for (const { socket } of connections) socket.write(Buffer.concat([begin, ...bodies]));
      await delay(1_000);
      for (const { socket } of connections) socket.write(Buffer.concat(ends));
      await delay(1_000);
      return connections.length * streams.length;
    },
  },
  ...[
    ["reflection whose replies are not read", reflection, "POST", 8, 40],
    ["the reference whose script is not read", "/swagger-ui-bundle.js", "GET", 20, 16],
  ].map(
    ([what, path, method, count, rounds]): Attack => ({
      name: `bytes with a frame each to ${what}`,
      async run(target) {
        const streams = oddNumbers(Number(count));
        const fields = { ...grpcHeaders(String(path)), ":method": String(method) };
        const head = { ":scheme": "http", ":authority": "localhost", ...fields };
        const port = method === "GET" ? "http" : "grpc";
        const protocol = { protocol: "h2" } as const;
        if (method === "GET" && target.kind === "plain") return 0;
        const connections = await Promise.all(
          Array.from({ length: 8 }, () => target.open(port, protocol)),
        );
        const asked = frame(Buffer.from([0x3a, 0]));
        const begin = [
          beginCalls(streams, head),
          ...(count === 8 ? streams.map((stream) => sendData(asked, stream)) : []),
        ];
        const one = Buffer.concat(streams.map((stream) => sendData(Buffer.alloc(1), stream)));
        const packet = Buffer.concat(Array(250).fill(one));
        for (const { socket } of connections) socket.write(Buffer.concat(begin));
        for (let i = 0; i < Number(rounds); i += 1) {
          for (const { socket } of connections) socket.write(packet);
          await delay(400);
        }
        return connections.length * streams.length * Number(rounds) * 250;
      },
    }),
  ),
  ...["application/json", "application/json; charset=utf-8"].map(
    (type): Attack => ({
      name: `bodies of which each byte has a chunk, as ${type}`,
      async run(target) {
        const fields = { ...target.greedy, "content-type": type, "transfer-encoding": "chunked" };
        const head = http1("POST", `${rpc}/CreateInvestor`, fields);
        const body = Buffer.from("1\r\nx\r\n".repeat(60_000));
        await writeToAll(target, 50, Buffer.concat([head, body]));
        return 50 * 60_000;
      },
    }),
  ),
  ...[
    "GET / HTTP/1.1\r\n\r\n",
    "GET / HTTP/1.1\r\nhost: localhost\r\nexpect: x\r\n\r\n",
    "GET / HTTP/2.0\r\nhost: localhost\r\nconnection: keep-alive\r\n\r\n",
    "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n",
  ].map(
    (text): Attack => ({
      name: `${JSON.stringify(text)} after a watch`,
      async run(target) {
        const some = Buffer.concat([watch, ...Array(1_800).fill(Buffer.from(text))]);
        await writeToAll(target, 40, some);
        return 40 * 1_800;
      },
    }),
  ),
  {
    name: "watches with as many headers as there may be",
    async run(target) {
      const fields = Array.from({ length: 120 }, (_, i) => [`x-${i}`, "x"]);
      const head = { "content-type": "application/connect+json", ...Object.fromEntries(fields) };
      const one = http1("POST", `${health}/Watch`, head, frame(Buffer.from("{}")));
      await writeToAll(target, 128, Buffer.concat(Array(8).fill(one)));
      return 128 * 8;
    },
  },
  ...["gzip", "br"].map(
    (encoding): Attack => ({
      name: `replies that are all compressed at once by ${encoding}`,
      async run(target) {
        const text = Array.from({ length: 256 }, (_, i) => String.fromCodePoint(0x4e00 + i * 7));
        const own = plainJson.replaceAll(strangersText, customersText);
        const record = { ...JSON.parse(own), lastName: text.join(""), city: text.join("") };
        const head = { ...target.greedy, "content-type": "application/json" };
        const created = await target.request("/v1/investors", {
          method: "POST",
          headers: head,
          body: JSON.stringify(record),
        });
        const { id } = JSON.parse(created.text);
        const accepting = { ...head, "accept-encoding": encoding };
        const get = http1("POST", `${rpc}/GetInvestor`, accepting, JSON.stringify({ id }));
        await writeToAll(target, 7, Buffer.concat(Array(128).fill(get)));
        return 7 * 128;
      },
    }),
  ),
  {
    name: "checks of health whose compressed messages come all at once",
    async run(target) {
      const body = frame(gzipSync(Buffer.alloc(0)), true);
      const head = grpcHeaders(`${health}/Check`, { "grpc-encoding": "gzip" });
      const finish: (() => void)[] = [];
      for (let i = 0; i < 20; i += 1) {
        const session = await target.session("grpc");
        for (let n = 0; n < 127; n += 1) {
          const stream = session.request(head).on("error", () => {});
          stream.write(body.subarray(0, 3));
          finish.push(() => stream.closed || stream.end(body.subarray(3)));
        }
      }
      await delay(500);
      for (const each of finish) each();
      await delay(500);
      return finish.length;
    },
  },
  {
    name: "metrics, asked for by a whole packet",
    async run(target) {
      const one = http1("GET", "/metrics", target.greedy);
      await writeToAll(target, 3, Buffer.concat(Array(250).fill(one)));
      return 3 * 250;
    },
  },
  ...[
    { what: "creates by gRPC", path: `${rpc}/CreateInvestor`, isKnown: true, hasCalled: false },
    {
      what: "creates by gRPC after a list",
      path: `${rpc}/CreateInvestor`,
      isKnown: true,
      hasCalled: true,
    },
    { what: "watches of strangers", path: `${health}/Watch`, isKnown: false, hasCalled: false },
  ].map(
    ({ what, path, isKnown, hasCalled }): Attack => ({
      name: `long headers and bodies that do not end, on all connections: ${what}`,
      isAlone: true,
      run(target) {
        const begin = (stream: number, path: string, more: Record<string, string> = {}) => {
          const fields = {
            ...{ ":scheme": "http", ":authority": "localhost" },
            ...grpcHeaders(path, isKnown ? target.greedy : {}),
            ...more,
          };
          return http2Frame(frameType.headers, frameFlag.endHeaders, stream, headerBlock(fields));
        };
        const body = frame(Buffer.alloc(65_000)).subarray(0, 60_000);
        const parts = Array.from({ length: 4 }, (_, i) =>
          sendData(body.subarray(15_000 * i, 15_000 * (i + 1)), 3),
        );
        const list = [
          begin(1, `${rpc}/ListInvestors`),
          sendData(frame(messages.ListInvestors), 1, frameFlag.endStream),
        ];
        const first = Buffer.concat([clientPreface, ...(hasCalled ? list : [])]);
        const bytes = Buffer.concat([begin(3, path, fillers), ...parts]);
        return sendInWaves(target, { port: "grpc", protocol: "h2", isKnown, first, bytes });
      },
    }),
  ),
  {
    name: "long headers and bodies that do not end, on all connections: creates by HTTP/1.1",
    isAlone: true,
    run(target) {
      const fields = { ...target.greedy, ...fillers, "content-length": "65000" };
      const head = http1("POST", "/v1/investors", {
        ...fields,
        "content-type": "application/json",
      });
      const bytes = Buffer.concat([head, Buffer.alloc(60_000, " ")]);
      return sendInWaves(target, { port: "http", isKnown: true, bytes });
    },
  },
  ...["identity", "gzip", "br"].map(
    (encoding): Attack => ({
      name: `large pages, on all connections: ${encoding}`,
      isAlone: true,
      async run(target) {
        const own = plainJson.replaceAll(strangersText, customersText);
        const record = { ...JSON.parse(own), lastName: "x".repeat(256), city: "x".repeat(256) };
        const fields = { ...target.greedy, "content-type": "application/json" };
        const session = await target.session("http");
        for (let i = 0; i < 1_000; i += 100) {
          await Promise.all(
            Array.from({ length: 100 }, () =>
              target.askKnown(
                session,
                { ":method": "POST", ":path": "/v1/investors", ...fields },
                Buffer.from(JSON.stringify(record)),
              ),
            ),
          );
        }
        const list = JSON.stringify({ pageSize: 1_000 });
        const head = { ...fields, "accept-encoding": encoding };
        const bytes = http1("POST", `${rpc}/ListInvestors`, head, list);
        return sendInWaves(target, { port: "http", isKnown: true, bytes, isRead: true });
      },
    }),
  ),
  {
    name: "requests by HTTP/2 whose replies are not read, on all connections",
    isAlone: true,
    on: "TLS",
    run(target) {
      const fields = { ":method": "GET", ":scheme": "https", ":authority": "localhost" };
      const block = headerBlock({ ...fields, ":path": "/openapi.json" });
      const flags = frameFlag.endHeaders | frameFlag.endStream;
      const gets = oddNumbers(100).map((stream) =>
        http2Frame(frameType.headers, flags, stream, block),
      );
      const packet = Buffer.concat([clientPreface, ...gets]);
      return sendInWaves(target, { port: "http", protocol: "h2", bytes: packet });
    },
  },
  ...[
    { encoding: "gzip", packed: gzipSync(Buffer.alloc(4_000)) },
    // It would be 16 MB.
    { encoding: "br", packed: brotliCompressSync(Buffer.alloc(2 ** 24)) },
  ].map(
    ({ encoding, packed }): Attack => ({
      name: `checks of health compressed by ${encoding}, on all connections`,
      isAlone: true,
      run(target) {
        const fields = {
          ...{ ":scheme": "http", ":authority": "localhost" },
          ...grpcHeaders(`${health}/Check`, { "grpc-encoding": encoding }),
        };
        const calls = oddNumbers(16).flatMap((stream) => [
          http2Frame(frameType.headers, frameFlag.endHeaders, stream, headerBlock(fields)),
          sendData(frame(packed, true), stream, frameFlag.endStream),
        ]);
        const bytes = Buffer.concat([clientPreface, ...calls]);
        return sendInWaves(target, { port: "grpc", protocol: "h2", bytes, isRead: true });
      },
    }),
  ),
  {
    name: "checks of health by gRPC-Web that do not end, on all connections",
    isAlone: true,
    run(target) {
      const fields = {
        ...{ ":scheme": "http", ":authority": "localhost" },
        ...grpcHeaders(`${health}/Check`, { "content-type": "application/grpc-web+proto" }),
      };
      const calls = oddNumbers(4).map((stream) =>
        http2Frame(frameType.headers, frameFlag.endHeaders, stream, headerBlock(fields)),
      );
      const bytes = Buffer.concat([clientPreface, ...calls]);
      return sendInWaves(target, { port: "grpc", protocol: "h2", bytes });
    },
  },
  ...[
    { what: "requests", request: frame(Buffer.from([0x22, 1, 0x78])), headers: {} },
    {
      what: "empty compressed requests",
      request: frame(Buffer.alloc(0), true),
      headers: { "grpc-encoding": "gzip" },
    },
  ].map(
    ({ what, request, headers }): Attack => ({
      name: `streams of reflection whose ${what} come in whole packets`,
      async run(target) {
        const streams = oddNumbers(8);
        const fields = {
          ...{ ":scheme": "http", ":authority": "localhost" },
          ...grpcHeaders(reflection, headers),
        };
        const requests = Buffer.concat(Array(300).fill(request));
        const packet = Buffer.concat(
          streams.flatMap((stream) => Array(20).fill(sendData(requests, stream))),
        );
        const connections = await Promise.all(
          Array.from({ length: 32 }, () => target.open("grpc", { protocol: "h2" })),
        );
        for (const { socket } of connections) {
          socket.resume();
          socket.write(Buffer.concat([beginCalls(streams, fields), packet]));
        }
        await delay(4_000);
        return connections.length * streams.length * 20 * 300;
      },
    }),
  ),
  {
    name: "streams of reflection whose clients leave",
    isAlone: true,
    async run(target) {
      const streams = oddNumbers(8);
      const fields = {
        ...{ ":scheme": "http", ":authority": "localhost" },
        ...grpcHeaders(reflection, { "grpc-encoding": "gzip" }),
      };
      const requests = Buffer.concat(Array(550).fill(frame(gzipSync(Buffer.from("*\0")), true)));
      const bytes = Buffer.concat([
        clientPreface,
        widestWindows,
        ...streams.flatMap((stream) => [
          beginCalls([stream], fields).subarray(clientPreface.length + closedWindows.length),
          ...Array(4).fill(sendData(requests, stream)),
        ]),
      ]);
      const end = performance.now() + 8_000;
      let count = 0;
      const clients = Array.from({ length: 200 }, async () => {
        while (performance.now() < end) {
          const { socket } = await target.open("grpc", { protocol: "h2", mayFail: true });
          await within(new Promise((resolve) => socket.write(bytes, resolve)), 1_000, undefined);
          socket.destroy();
          count += streams.length;
        }
      });
      await Promise.all(clients);
      return count;
    },
  },
  {
    name: "calls whose bytes come later, a frame for each, all at once",
    async run(target) {
      const streams = oddNumbers(60);
      const check = grpcHeaders(`${health}/Check`);
      const fields = { ":scheme": "http", ":authority": "localhost", ...check };
      const bytes = streams.flatMap((stream) => Array(600).fill(sendData(Buffer.alloc(1), stream)));
      const packet = Buffer.concat(bytes);
      const connections = await Promise.all(
        Array.from({ length: 32 }, () => target.open("grpc", { protocol: "h2" })),
      );
      for (const { socket } of connections) socket.write(beginCalls(streams, fields));
      await delay(1_000);
      for (const { socket } of connections) socket.write(packet);
      await delay(3_000);
      return connections.length * bytes.length;
    },
  },
  {
    name: "handshakes that do not end, on all connections",
    isAlone: true,
    on: "TLS",
    async run(target) {
      const hello = unfinishedHello(8);
      const connections = await Promise.all(
        Array.from({ length: 1_020 }, () => target.openTcp("http")),
      );
      for (const { socket } of connections) socket.write(hello);
      await delay(2_000);
      return connections.length;
    },
  },
  {
    name: "watches on all connections",
    async run(target) {
      const connections = await Promise.all(
        // Some make room for others.
        Array.from({ length: 1_020 }, () => target.open("grpc", { protocol: "h2", mayFail: true })),
      );
      const call = Buffer.concat([beginCall(`${health}/Watch`), sendData(frame(Buffer.alloc(0)))]);
      for (const { socket } of connections) socket.write(call);
      await delay(500);
      for (let i = 0; i < 10; i += 1) {
        const { status } = await target.request("/v1/investors?pageSize=1", {
          headers: target.greedy,
        });
        expect(status, "the status of a new caller").toBe(200);
      }
      return connections.length;
    },
  },
];

describeAttacks("hoards", attacks);
