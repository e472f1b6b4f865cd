/** Frames of HTTP/2 as bytes (RFC 9113), for clients that break its rules. */

export const frameType = {
  data: 0x0,
  headers: 0x1,
  resetStream: 0x3,
  settings: 0x4,
  ping: 0x6,
  goaway: 0x7,
  windowUpdate: 0x8,
  continuation: 0x9,
} as const;

export const frameFlag = { none: 0, endStream: 0x1, endHeaders: 0x4 } as const;

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

/** What a client sends to be sent nothing on a stream. */
export const closedWindows = http2Frame(
  frameType.settings,
  frameFlag.none,
  0,
  Buffer.from([0, 4, 0, 0, 0, 0]),
);

/** Headers as literals without indexing (RFC 7541, 6.2.2). */
export function headerBlock(headers: Record<string, string>): Buffer {
  const literal = (text: string) => Buffer.from([text.length, ...Buffer.from(text)]);
  return Buffer.concat(
    Object.entries(headers).flatMap(([name, value]) => [
      Buffer.from([0]),
      literal(name),
      literal(value),
    ]),
  );
}
