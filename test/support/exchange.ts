/** Requests and their replies as they are on the wire. */
import { once } from "node:events";
import { type ClientHttp2Session, constants } from "node:http2";
import { gunzipSync } from "node:zlib";
import { http1, openWire } from "./tcp.ts";

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
  const isPacked = headers["content-encoding"] === "gzip";
  return {
    statuses,
    headers: Object.fromEntries(said.toSorted()),
    body: isPacked && body.length > 0 ? gunzipSync(body) : body,
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
  const { socket, received } = openWire(port, bytes);
  let isClosed = false;
  const { promise, resolve } = Promise.withResolvers<Received>();
  const look = () => {
    const reply = readHttp1(received(), isHead, isClosed);
    if (reply) resolve(reply);
  };
  socket.on("data", look).once("close", () => {
    isClosed = true;
    look();
  });
  const reply = await promise;
  socket.destroy();
  return reply;
}

/** The reply in a text; undefined as long as it is not whole. */
function readHttp1(text: string, isHead: boolean, isClosed: boolean): Received | undefined {
  const statuses: number[] = [];
  let rest = text;
  for (;;) {
    const end = rest.indexOf("\r\n\r\n");
    const [first = "", ...lines] = rest.slice(0, Math.max(0, end)).split("\r\n");
    const [, status] = /^HTTP\/1\.1 (\d{3}) /.exec(first) ?? [];
    if (status === undefined) {
      const broken = toReceived(statuses, {}, Buffer.from(rest, "latin1"));
      return isClosed ? { ...broken, end: "closed" } : undefined;
    }
    statuses.push(Number(status));
    rest = rest.slice(end + 4);
    if (status.startsWith("1")) continue;
    const headers: Fields = {};
    for (const line of lines) {
      const [name = "", value = ""] = line.split(/: ?(.*)/);
      const known = headers[name.toLowerCase()];
      headers[name.toLowerCase()] = known === undefined ? value : `${known}; ${value}`;
    }
    const isEmpty = isHead || status === "204" || status === "304";
    const isChunked = headers["transfer-encoding"] === "chunked" && !isEmpty;
    const length = Number(isEmpty ? 0 : (headers["content-length"] ?? Number.NaN));
    const isWhole = isChunked ? rest.endsWith("0\r\n\r\n") : rest.length >= length;
    if (!isWhole && !isClosed) return undefined;
    const body = isChunked ? withoutChunks(rest) : rest;
    const reply = toReceived(statuses, headers, Buffer.from(body, "latin1"));
    return isWhole ? reply : { ...reply, end: "closed" };
  }
}

function withoutChunks(text: string): string {
  const [, length = "0"] = /^([0-9a-f]+)\r\n/i.exec(text) ?? [];
  const size = Number.parseInt(length, 16);
  const start = length.length + 2;
  return size === 0
    ? ""
    : text.slice(start, start + size) + withoutChunks(text.slice(start + size + 2));
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
