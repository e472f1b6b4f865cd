/** Requests and their replies as they are on the wire. */
import { once } from "node:events";
import { request } from "node:http";
import { type ClientHttp2Session, constants } from "node:http2";
import { connect } from "node:net";
import { Duplex } from "node:stream";
import { buffer } from "node:stream/consumers";
import { brotliDecompressSync, gunzipSync } from "node:zlib";
import { http1 } from "./tcp.ts";

/** A request as it is sent. */
export interface Sent {
  method: string;
  path: string;
  headers: Record<string, string>;
  body: Uint8Array;
  /** Whether the body goes on, and never ends. */
  isHalf?: boolean;
}

/** All that came back. */
export interface Received {
  /** Those of interim replies come first. */
  statuses: number[];
  headers: Record<string, string>;
  /** Unpacked. */
  body: Buffer;
  trailers: Record<string, string>;
  /** How the server has ended the connection or the stream, if it has. */
  end?: string;
}

type Fields = Record<string, string>;

/** Those of all replies, or that tell nothing more than their bodies do. */
const ordinary = /^(date|keep-alive|transfer-encoding|:status)$/;

function toReceived(statuses: number[], headers: Fields, body: Buffer, trailers = {}): Received {
  const said = Object.entries(headers)
    .filter(
      ([name, value]) => !ordinary.test(name) && `${name} ${value}` !== "connection keep-alive",
    )
    .filter(([name, value]) => name !== "content-length" || Number(value) !== body.length);
  const encoding = body.length > 0 ? headers["content-encoding"] : undefined;
  const unpack = { gzip: gunzipSync, br: brotliDecompressSync }[String(encoding)];
  return {
    statuses,
    headers: Object.fromEntries(said.toSorted()),
    body: unpack?.(body) ?? body,
    trailers,
  };
}

/** Sends a request by HTTP/1.1 on a connection of its own. */
export function exchangeHttp1(port: number, sent: Sent): Promise<Received> {
  const { method, path, headers, body, isHalf } = sent;
  const length = String(body.length + (isHalf ? 1 : 0));
  const hasLength = body.length > 0 || isHalf || method === "POST";
  const head = http1(method, path, {
    "content-length": hasLength ? length : undefined,
    ...headers,
  });
  return exchangeBytes(port, Buffer.concat([Buffer.from(head), body]), method === "HEAD");
}

/** Sends bytes, and resolves with the reply of HTTP/1.1, or at the end of the connection. */
export async function exchangeBytes(
  port: number,
  bytes: Uint8Array | string,
  isHead = false,
): Promise<Received> {
  // Node.js's client reads the reply; what it would send itself goes nowhere.
  const wire = new Duplex({ read() {}, write: (_, __, done) => done() });
  const reading = request({ method: isHead ? "HEAD" : "GET", createConnection: () => wire });
  const socket = connect(port, "127.0.0.1").on("error", () => {});
  socket.on("data", (chunk) => wire.push(chunk)).once("close", () => wire.push(null));
  socket.write(bytes);
  const statuses: number[] = [];
  reading.on("information", ({ statusCode }) => statuses.push(statusCode));
  try {
    const [reply] = await once(reading.end(), "response");
    statuses.push(reply.statusCode);
    return toReceived(statuses, reply.headers, await buffer(reply));
  } catch {
    return { ...toReceived(statuses, {}, Buffer.alloc(0)), end: "closed" };
  } finally {
    socket.destroy();
  }
}

/** Sends a request on a connection of HTTP/2. */
export async function exchangeHttp2(session: ClientHttp2Session, sent: Sent): Promise<Received> {
  const { method, path, headers, body, isHalf } = sent;
  const isEmpty = body.length === 0 && !isHalf;
  const head = { ":method": method, ":path": path, ...headers };
  const stream = session.request(head, { endStream: isEmpty });
  const seen = { headers: {} as Fields, trailers: {} as Fields };
  const chunks: Buffer[] = [];
  const statuses: number[] = [];
  const note = (fields: object) => statuses.push(Number((fields as Fields)[":status"]));
  const toFields = (fields: object) =>
    Object.fromEntries(Object.entries(fields).map(([name, value]) => [name, String(value)]));
  stream
    .on("error", () => {})
    .on("headers", note)
    .on("response", (fields) => {
      note(fields);
      seen.headers = toFields(fields);
    })
    .on("trailers", (fields) => {
      seen.trailers = toFields(fields);
    })
    .on("data", (chunk: Buffer) => void chunks.push(chunk));
  if (isHalf) stream.write(body);
  else if (!isEmpty) stream.end(body);
  // A stream whose request goes on does not close by itself.
  stream.once("end", () => isHalf && stream.close(constants.NGHTTP2_NO_ERROR));
  await once(stream, "close");
  const reply = toReceived(statuses, seen.headers, Buffer.concat(chunks), seen.trailers);
  return stream.rstCode === constants.NGHTTP2_NO_ERROR
    ? reply
    : { ...reply, end: `reset ${stream.rstCode}` };
}
