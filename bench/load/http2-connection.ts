import { createRequire } from "node:module";
import { connect, type Socket } from "node:net";
import type { Connection } from "./connection.ts";

/** A decoder of header blocks (RFC 7541). */
interface Decompressor {
  write(block: Buffer): void;
  execute(): void;
  read(): { name: string; value: string } | null;
}
const { decompressor } = createRequire(import.meta.url)("hpack.js") as {
  decompressor: { create(options: { table: { maxSize: number } }): Decompressor };
};

const frame = { data: 0, headers: 1, reset: 3, settings: 4, ping: 6, goaway: 7, windowUpdate: 8 };
const flag = { ack: 1, endStream: 1, endHeaders: 4 };

interface Exchange {
  chunks: Buffer[];
  status: string | undefined;
  resolve(message: Buffer): void;
  reject(error: Error): void;
}

/**
 * Opens a connection that makes gRPC calls of one method. It does by hand what they need of
 * HTTP/2 (RFC 9113): that of Node.js takes longer to make a call than a server to answer it.
 * Flow control is left out, which is right for small messages and few of them at once.
 */
export async function openGrpcConnection(port: number, path: string): Promise<Connection> {
  const socket = connect({ port, host: "127.0.0.1", noDelay: true });
  const exchanges = new Map<number, Exchange>();
  const blocks = new Map<string, string | undefined>();
  const block = requestHeaders(path);
  let nextStream = 1;
  let rest: Buffer = Buffer.alloc(0);
  let outgoing: Buffer[] = [];

  // No table of the peer's headers, so that a block means the same whenever it comes.
  const settings = Buffer.from([0, 1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 4, 0x7f, 0xff, 0xff, 0xff]);
  const window = Buffer.from([0x7f, 0xff, 0, 0]);
  socket.write("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  socket.write(
    Buffer.concat([
      toFrame(frame.settings, 0, 0, settings),
      toFrame(frame.windowUpdate, 0, 0, window),
    ]),
  );

  const fail = (error: Error) => {
    for (const { reject } of exchanges.values()) reject(error);
    exchanges.clear();
  };
  socket.on("error", fail);
  socket.on("close", () => fail(new Error("the connection was closed")));
  socket.on("data", (chunk: Buffer) => {
    rest = rest.length === 0 ? chunk : Buffer.concat([rest, chunk]);
    while (rest.length >= 9) {
      const length = rest.readUIntBE(0, 3);
      if (rest.length < 9 + length) break;
      const [type = 0, flags = 0] = [rest[3], rest[4]];
      onFrame(type, flags, rest.readUInt32BE(5), rest.subarray(9, 9 + length));
      rest = rest.subarray(9 + length);
    }
    setImmediate(flush);
  });

  function onFrame(type: number, flags: number, stream: number, payload: Buffer): void {
    if (type === frame.settings && !(flags & flag.ack))
      send(toFrame(type, flag.ack, 0, Buffer.alloc(0)));
    else if (type === frame.ping && !(flags & flag.ack)) send(toFrame(type, flag.ack, 0, payload));
    else if (type === frame.goaway) fail(new Error("the server said GOAWAY"));
    const exchange = exchanges.get(stream);
    if (exchange === undefined) return;
    if (type === frame.data) exchange.chunks.push(payload);
    if (type === frame.headers) exchange.status = statusIn(payload) ?? exchange.status;
    if (type === frame.reset || (type <= frame.headers && flags & flag.endStream)) {
      exchanges.delete(stream);
      const message = Buffer.concat(exchange.chunks).subarray(5);
      if (exchange.status === "0") exchange.resolve(message);
      else exchange.reject(new Error(`${path} answered with status ${exchange.status}`));
    }
  }

  /** The grpc-status in a block of headers, each of which is decoded once. */
  function statusIn(payload: Buffer): string | undefined {
    const key = payload.toString("latin1");
    if (!blocks.has(key)) blocks.set(key, decodeStatus(payload));
    return blocks.get(key);
  }

  function send(bytes: Buffer): void {
    if (outgoing.push(bytes) === 1) setImmediate(flush);
  }

  function flush(): void {
    if (outgoing.length > 0) socket.write(Buffer.concat(outgoing));
    outgoing = [];
  }

  return {
    call(message) {
      const stream = nextStream;
      nextStream += 2;
      const data = Buffer.allocUnsafe(5 + message.length);
      data.writeUInt8(0, 0);
      data.writeUInt32BE(message.length, 1);
      message.copy(data, 5);
      send(toFrame(frame.headers, flag.endHeaders, stream, block));
      send(toFrame(frame.data, flag.endStream, stream, data));
      return new Promise((resolve, reject) => {
        exchanges.set(stream, { chunks: [], status: undefined, resolve, reject });
      });
    },
    close: () => closed(socket),
  };
}

function decodeStatus(payload: Buffer): string | undefined {
  const decoder = decompressor.create({ table: { maxSize: 4_096 } });
  decoder.write(payload);
  decoder.execute();
  for (let header = decoder.read(); header !== null; header = decoder.read()) {
    if (header.name === "grpc-status") return header.value;
  }
  return undefined;
}

/** The headers of a call, by the static table or as literals (RFC 7541, 6). */
function requestHeaders(path: string): Buffer {
  const literal = (text: string) => Buffer.concat([Buffer.from([text.length]), Buffer.from(text)]);
  return Buffer.concat([
    Buffer.from([0x83, 0x86, 0x04]),
    literal(path),
    Buffer.from([0x01]),
    literal("localhost"),
    Buffer.from([0x0f, 0x10]),
    literal("application/grpc"),
    Buffer.from([0x00]),
    literal("te"),
    literal("trailers"),
  ]);
}

function toFrame(type: number, flags: number, stream: number, payload: Buffer): Buffer {
  const bytes = Buffer.allocUnsafe(9 + payload.length);
  bytes.writeUIntBE(payload.length, 0, 3);
  bytes.writeUInt8(type, 3);
  bytes.writeUInt8(flags, 4);
  bytes.writeUInt32BE(stream, 5);
  payload.copy(bytes, 9);
  return bytes;
}

function closed(socket: Socket): void {
  socket.removeAllListeners("close");
  socket.destroy();
}
