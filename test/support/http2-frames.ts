/** Frames of HTTP/2 as bytes (RFC 9113), for clients that break its rules. */

export const frameType = {
  data: 0x0,
  headers: 0x1,
  resetStream: 0x3,
  settings: 0x4,
  ping: 0x6,
  goAway: 0x7,
  windowUpdate: 0x8,
  continuation: 0x9,
} as const;

export const frameFlag = { none: 0, endStream: 0x1, endHeaders: 0x4 } as const;

/** The fields of a request by name. */
export type Fields = Record<string, string>;

/** One frame. */
export function http2Frame(
  type: number,
  flags: number,
  stream: number,
  payload: Uint8Array,
): Buffer {
  const head = Buffer.alloc(9);
  head.writeUIntBE(payload.length, 0, 3);
  head.writeUInt8(type, 3);
  head.writeUInt8(flags, 4);
  head.writeUInt32BE(stream, 5);
  return Buffer.concat([head, payload]);
}

/** What a client sends first: the preface and empty settings. */
export const clientPreface = Buffer.concat([
  Buffer.from("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
  http2Frame(frameType.settings, frameFlag.none, 0, Buffer.alloc(0)),
]);

/** What a client sends whose windows never hold up a reply. */
export const wideWindows = Buffer.concat([
  http2Frame(frameType.settings, frameFlag.none, 0, Buffer.from([0, 4, 127, 255, 255, 255])),
  http2Frame(frameType.windowUpdate, frameFlag.none, 0, Buffer.from([127, 0, 0, 0])),
]);

/** What a client sends to be sent nothing on a stream. */
export const closedWindows = http2Frame(
  frameType.settings,
  frameFlag.none,
  0,
  Buffer.from([0, 4, 0, 0, 0, 0]),
);

/** The fields of a request of HTTP/2. */
export function fieldsOf(path: string, more: Fields = {}, type = "application/grpc"): Fields {
  const request = { ":method": "POST", ":scheme": "http", ":authority": "localhost" };
  return { ...request, ":path": path, "content-type": type, te: "trailers", ...more };
}

/** Opens a stream. */
export function openStream(stream: number, fields: Fields): Buffer {
  return http2Frame(frameType.headers, frameFlag.endHeaders, stream, headerBlock(fields));
}

/** Sends data on a stream. */
export function sendData(stream: number, bytes: Uint8Array, isLast = false): Buffer {
  return http2Frame(frameType.data, isLast ? frameFlag.endStream : 0, stream, bytes);
}

/** What a client sends first, and a call on its first stream. */
export function firstCall(path: string, body: Uint8Array, isLast = true): Buffer {
  const call = [openStream(1, fieldsOf(path)), sendData(1, body, isLast)];
  return Buffer.concat([clientPreface, ...call]);
}

/** Headers as literals without indexing (RFC 7541, 6.2.2). */
export function headerBlock(headers: Fields): Buffer {
  const literal = (text: string) => Buffer.from([text.length, ...Buffer.from(text)]);
  return Buffer.concat(
    Object.entries(headers).flatMap(([name, value]) => [
      Buffer.from([0]),
      literal(name),
      literal(value),
    ]),
  );
}
