/** More of something than any caller needs, and clients that stop half-way or never read. */
import { setTimeout as delay } from "node:timers/promises";
import { brotliCompressSync, gzipSync } from "node:zlib";
import {
  clientPreface,
  closedWindows,
  type Fields,
  fieldsOf,
  frameFlag,
  frameType,
  headerBlock,
  http2Frame,
  openStream,
} from "../../support/http2-frames.ts";
import { frame, messages, paths } from "../../support/raw-grpc.ts";
import { calls, http1, http1Requests, json } from "./requests.ts";
import type { Attack, Hostile, Protocol } from "./target.ts";

const { data, headers, resetStream, settings, ping, windowUpdate, continuation } = frameType;
const { none, endHeaders, endStream } = frameFlag;
const padding = headerBlock({ "x-padding": "x".repeat(100) });

/** A field of 4,000 bytes for the table of HPACK, and 16,000 references to it (RFC 7541, 6). */
const longField = Buffer.concat([Buffer.from("4001617fa11e", "hex"), Buffer.alloc(4_000)]);
const references = Buffer.alloc(16_000, 0xbe);

/** Makes the n-th frames of a flood on a connection whose calls have this block of headers. */
type FramesOf = (n: number, call: Buffer) => [type: number, flags: number, payload: Uint8Array][];

const ownStream = (n: number) => 2 * n + 1;
const oneStream = () => 1;
const noStream = () => 0;

/** Floods of frames: on which stream, and which. */
const frameFloods: Record<string, [streamOf: (n: number) => number, framesOf: FramesOf]> = {
  "rapid resets": [
    ownStream,
    (_, call) => [
      [headers, endHeaders, call],
      [resetStream, none, Buffer.from([0, 0, 0, 8])],
    ],
  ],
  // A window that grows by nothing is an error of the stream (RFC 9113, 6.9).
  "streams that the service has to reset": [
    ownStream,
    (_, call) => [
      [headers, endHeaders, call],
      [windowUpdate, none, Buffer.alloc(4)],
    ],
  ],
  "calls without a message": [ownStream, (_, call) => [[headers, endHeaders | endStream, call]]],
  "streams that stay open": [ownStream, (_, call) => [[headers, endHeaders, call]]],
  "header bombs": [
    ownStream,
    (_, call) => [
      [headers, none, Buffer.concat([call, longField])],
      [continuation, endHeaders, references],
    ],
  ],
  "CONTINUATION frames": [
    oneStream,
    (n, call) => [n === 0 ? [headers, none, call] : [continuation, none, padding]],
  ],
  "DATA of a byte": [
    oneStream,
    (n, call) => [n === 0 ? [headers, endHeaders, call] : [data, none, Buffer.alloc(1)]],
  ],
  SETTINGS: [noStream, (n) => [[settings, none, Buffer.from([0, 1, 0, 0, (n % 2) * 16, 0])]]],
  PING: [noStream, () => [[ping, none, Buffer.alloc(8)]]],
};

/** Sends frames until the connection is closed or it was enough, and reads only after a while. */
function flood([streamOf, framesOf]: (typeof frameFloods)[string]): Attack {
  return async ({ random, open, credentials }) => {
    const path = random.pick([paths.list, paths.create, paths.check]);
    const call = headerBlock(fieldsOf(path, credentials));
    const framesAt = (n: number) =>
      framesOf(n, call).map(([type, flags, payload]) =>
        http2Frame(type, flags, streamOf(n), payload),
      );
    const { socket, tcp, closes } = await open("h2");
    socket.pause().write(clientPreface);
    let bytes = 0;
    for (let n = 0; n < 20_000 && bytes < 4_000_000 && !tcp.destroyed; n += 100) {
      const some = Buffer.concat(Array.from({ length: 100 }, (_, i) => framesAt(n + i)).flat());
      bytes += some.length;
      if (!socket.write(some)) await delay(20);
      if (n > 2_000) socket.resume();
    }
    socket.resume();
    await closes(random.int(0, 500));
    socket.destroy();
  };
}

/** Writes bytes on a connection, and leaves after a while. */
async function hold(
  { random, open }: Hostile,
  protocol: Protocol,
  bytes: Uint8Array[],
  isRead = true,
) {
  const { socket, closes } = await open(protocol);
  if (!isRead) socket.pause();
  socket.write(Buffer.concat(bytes));
  await closes(random.int(200, 1_000));
  socket.destroy();
}

const fillers = Object.fromEntries(
  Array.from({ length: 75 }, (_, i) => [`x-${i}`, "x".repeat(99)]),
);
const manyFields = Object.fromEntries(Array.from({ length: 5_000 }, (_, i) => [`x-${i}`, "x"]));
const unpacked = Buffer.alloc(20_000_000, " ");
const packed = { gzip: gzipSync(unpacked), br: brotliCompressSync(unpacked) };

/** Small requests that are large once unpacked, or take long to parse. */
function bombs({ credentials }: Hostile): Buffer[] {
  const web = { "content-type": "application/grpc-web+proto" };
  const post = (path: string, fields: Fields, body: Uint8Array | string) =>
    http1("POST", path, { ...credentials, ...json, ...fields }, body);
  return [
    ...Object.entries(packed).flatMap(([encoding, bytes]) => [
      post(paths.create, { "content-encoding": encoding }, bytes),
      post(paths.create, { ...web, "grpc-encoding": encoding }, frame(bytes, true)),
    ]),
    post(paths.create, web, Buffer.from([0, 255, 255, 255, 255, 0])),
    post(paths.create, {}, '{"a":'.repeat(12_000)),
    // Groups of an unknown field in each other, without an end.
    post(paths.create, { "content-type": "application/proto" }, "#".repeat(60_000)),
    post("/v1/investors", { "transfer-encoding": "chunked" }, "1\r\nx\r\n".repeat(60_000)),
    http1("GET", "/v1/investors", { ...credentials, ...manyFields }),
    http1("GET", `/v1/investors/${"x".repeat(1_000_000)}`, credentials),
  ];
}

/** Attacks by quantity. */
export const floods: Record<string, Attack> = {
  ...Object.fromEntries(
    Object.entries(frameFloods).map(([name, frames]) => [`a flood of ${name}`, flood(frames)]),
  ),
  bombs: (hostile) => hold(hostile, "http/1.1", [hostile.random.pick(bombs(hostile))]),
  "pipelines of thousands of requests"(hostile) {
    const { random } = hostile;
    const some = random.shuffle(http1Requests(hostile)).slice(0, random.int(1, 5));
    const pipeline = Array.from({ length: 2_000 }, () => random.pick(some));
    return hold(hostile, "http/1.1", pipeline, random.int(0, 1) === 0);
  },
  "messages that stay a byte short, on every stream"(hostile) {
    const { random, credentials } = hostile;
    const path = random.pick([paths.create, paths.create, paths.check, paths.reflect]);
    const message = frame(Buffer.alloc(60_000)).subarray(0, random.pick([5, 500, 16_000]));
    const fields = { ...credentials, ...random.pick([{}, fillers]) };
    return hold(hostile, "h2", [clientPreface, ...calls(128, path, fields, message)]);
  },
  "reflection streams"(hostile) {
    const message = Buffer.concat(
      Array(hostile.random.pick([1, 1_000])).fill(messages.listServices),
    );
    const windows = hostile.random.pick([[], [closedWindows]]);
    const streams = calls(60, paths.reflect, fillers, message);
    return hold(hostile, "h2", [clientPreface, ...windows, ...streams]);
  },
  "pages that are not read, over HTTP/2"(hostile) {
    const pages = calls(128, paths.list, hostile.credentials, messages.fullPage, true);
    return hold(hostile, "h2", [clientPreface, closedWindows, ...pages]);
  },
  "pages and whole lists over HTTP/1.1"(hostile) {
    const { random, credentials } = hostile;
    const path = random.pick(["/v1/investors", "/v1/investors?pageSize=1000"]);
    const encoding = random.pick(["identity", "gzip", "br"]);
    const get = http1("GET", path, { ...credentials, "accept-encoding": encoding });
    return hold(hostile, "http/1.1", Array(12).fill(get), random.int(0, 1) === 0);
  },
  async "connections that stay, with a health check on each that does not end"({ open }) {
    const { socket, closes } = await open("h2");
    socket.write(Buffer.concat([clientPreface, openStream(1, fieldsOf(paths.check))]));
    await closes(20);
  },
  async "connections that come and go"({ random, open }) {
    const { socket, tcp, closes } = await open(random.pick(["tcp", "h2", "http/1.1"] as const));
    socket.write(random.pick([clientPreface, Buffer.from("GET / HTTP/1.1\r\n")]));
    await closes(random.int(0, 3));
    tcp.resetAndDestroy();
  },
};
