import { connect } from "node:net";

const type = { data: 0, headers: 1, reset: 3, settings: 4, ping: 6, goaway: 7, windowUpdate: 8 };
const flag = { ack: 1, endStream: 1, endHeaders: 4 };

/** The code of a reset by a client that left (RFC 9113, 7). */
const cancel = 8;

interface Exchange extends PromiseWithResolvers<Buffer> {
  chunks: Buffer[];
}

/**
 * Opens a connection that makes unary gRPC calls of one method, with the little of HTTP/2 (RFC
 * 9113) that they need: Node's own client takes longer to make a call than a server to answer
 * it. Flow control is left out, which is right for small messages and few of them at once. The
 * headers of replies are not decoded: a call that fails has no message.
 */
export function openGrpc(port: number, path: string, authorization?: string) {
  const socket = connect({ port, host: "127.0.0.1", noDelay: true });
  const exchanges = new Map<number, Exchange>();
  const headers = requestHeaders(path, authorization);
  let nextStream = 1;
  let rest: Buffer = Buffer.alloc(0);
  let outgoing: Buffer[] = [];

  // SETTINGS_INITIAL_WINDOW_SIZE and the connection's own window are as large as they can be.
  socket.write("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  socket.write(toFrame(type.settings, 0, 0, Buffer.from([0, 4, 0x7f, 0xff, 0xff, 0xff])));
  socket.write(toFrame(type.windowUpdate, 0, 0, Buffer.from([0x7f, 0xff, 0, 0])));

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
      const payload = rest.subarray(9, 9 + length);
      onFrame(rest.readUInt8(3), rest.readUInt8(4), rest.readUInt32BE(5), payload);
      rest = rest.subarray(9 + length);
    }
  });

  function onFrame(kind: number, flags: number, stream: number, payload: Buffer): void {
    if (kind === type.settings && !(flags & flag.ack)) {
      send(toFrame(kind, flag.ack, 0, Buffer.alloc(0)));
    } else if (kind === type.ping && !(flags & flag.ack)) {
      send(toFrame(kind, flag.ack, 0, payload));
    } else if (kind === type.goaway) {
      fail(new Error("the server said GOAWAY"));
    }
    const exchange = exchanges.get(stream);
    if (exchange === undefined) return;
    if (kind === type.data) exchange.chunks.push(payload);
    if (kind === type.reset || (kind <= type.headers && flags & flag.endStream)) {
      exchanges.delete(stream);
      // What precedes a message is its length and that it is not compressed.
      exchange.resolve(Buffer.concat(exchange.chunks).subarray(5));
    }
  }

  /** Sends with one write what is ready in one turn of the event loop. */
  function send(...frames: Buffer[]): void {
    if (outgoing.length === 0) {
      setImmediate(() => {
        socket.write(Buffer.concat(outgoing));
        outgoing = [];
      });
    }
    outgoing.push(...frames);
  }

  function call(message: Buffer): Promise<Buffer> {
    const stream = nextStream;
    nextStream += 2;
    const data = Buffer.allocUnsafe(5 + message.length);
    data.writeUInt8(0, 0);
    data.writeUInt32BE(message.length, 1);
    message.copy(data, 5);
    send(toFrame(type.headers, flag.endHeaders, stream, headers));
    send(toFrame(type.data, flag.endStream, stream, data));
    const exchange = { chunks: [], ...Promise.withResolvers<Buffer>() };
    exchanges.set(stream, exchange);
    return exchange.promise;
  }

  return {
    call,
    /** Begins a call, and resets it at once. */
    reset(message: Buffer): void {
      void call(message);
      const stream = nextStream - 2;
      exchanges.delete(stream);
      send(toFrame(type.reset, 0, stream, Buffer.from([0, 0, 0, cancel])));
    },
    close: () => socket.destroy(),
  };
}

/** The headers of a call, by the static table or as literals (RFC 7541, 6). */
function requestHeaders(path: string, authorization?: string): Buffer {
  const literal = (text: string) => Buffer.concat([Buffer.from([text.length]), Buffer.from(text)]);
  return Buffer.concat([
    // :method POST, :scheme http, :path
    Buffer.from([0x83, 0x86, 0x04]),
    literal(path),
    // :authority
    Buffer.from([0x01]),
    literal("localhost"),
    // content-type
    Buffer.from([0x0f, 0x10]),
    literal("application/grpc"),
    Buffer.from([0x00]),
    literal("te"),
    literal("trailers"),
    ...(authorization === undefined
      ? []
      : [Buffer.from([0x00]), literal("authorization"), literal(authorization)]),
  ]);
}

function toFrame(kind: number, flags: number, stream: number, payload: Buffer): Buffer {
  const bytes = Buffer.allocUnsafe(9 + payload.length);
  bytes.writeUIntBE(payload.length, 0, 3);
  bytes.writeUInt8(kind, 3);
  bytes.writeUInt8(flags, 4);
  bytes.writeUInt32BE(stream, 5);
  payload.copy(bytes, 9);
  return bytes;
}
