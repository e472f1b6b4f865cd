import { once } from "node:events";
import { createServer as createHttp1Server, type ServerResponse } from "node:http";
import {
  Http2ServerRequest,
  Http2ServerResponse,
  type IncomingHttpHeaders,
  performServerHandshake,
  type ServerHttp2Stream,
} from "node:http2";
import { type AddressInfo, createServer, type Server, type Socket } from "node:net";
import type { TLSSocket } from "node:tls";
import { limits } from "../limits.ts";
import type { Connection } from "./connection.ts";
import type { Connections } from "./connection-set.ts";
import { type HttpResponse, ignore } from "./reply.ts";
import type { HttpRequest } from "./request.ts";
import { createPace } from "./request-pace.ts";
import type { Tls } from "./tls.ts";

interface ListenerOptions {
  host: string;
  /** Each serves the same; 0: a free one. */
  ports: number[];
  /** TLS; plain text if absent. */
  tls?: Tls | undefined;
  connections: Connections;
  /**
   * Gives the function that replies to a unary gRPC call on its stream, which takes less CPU than Node.js's
   * HTTP/1.1-like objects; undefined for other streams.
   */
  streamServer(
    connection: Connection,
    stream: ServerHttp2Stream,
    headers: IncomingHttpHeaders,
  ): (() => void) | undefined;
  /** Replies to any other request, now or later; never throws. */
  serve(connection: Connection, req: HttpRequest, res: HttpResponse): void;
}

/** How HTTP/2 with prior knowledge begins (RFC 9113, 3.4), and no request of HTTP/1.1. */
const prefaceStart = "PRI";

const socketOptions = { noDelay: true, keepAlive: true, keepAliveInitialDelay: 60_000 };

const http2Options = {
  settings: { maxConcurrentStreams: limits.streams, maxHeaderListSize: limits.headerBytes },
  // No limit: Node.js never subtracts the unsent bytes of reset streams, and would reject all
  // further calls of the connection.
  maxSessionMemory: 2 ** 32 - 1,
  // Node.js still counts reset streams when it reads their successors together with the reset.
  maxSessionRejectedStreams: 1_000,
  // Callers with short deadlines share a connection, and on a busy machine many time out at once.
  // With Node.js's default of 33 a second, the others' calls would end with them.
  streamResetBurst: limits.resets,
  streamResetRate: limits.resetsASecond,
};

/**
 * Listens for HTTP/1.1 and HTTP/2: with TLS as the client chooses by ALPN, in plain text by the first bytes.
 *
 * @throws {Error} for operators, if listening fails
 */
export async function listen(options: ListenerOptions) {
  const { host, ports, tls, connections } = options;
  const serveConnection = createHttpServers(options);
  const begin = tls ? beginTls(tls, connections, serveConnection) : readPreface(serveConnection);
  const servers: Server[] = [];
  const opened = ports.map(async (port) => {
    const server = createServer(socketOptions, (socket) => {
      const connection = connections.add(socket);
      if (connection) begin(connection, socket);
    });
    servers.push(server);
    await once(server.listen({ port, host }), "listening").catch((error: Error) => {
      throw new Error(`cannot listen on --host ${host}, --port ${port}: ${error.message}`);
    });
    // Such as a connection that was gone before it was accepted.
    server.on("error", ignore);
    return (server.address() as AddressInfo).port;
  });
  return {
    ports: await Promise.all(opened),
    /** Stops accepting connections; open ones stay. */
    close() {
      for (const server of servers) server.close();
    },
  };
}

type ServeConnection = (connection: Connection, socket: Socket, isHttp2: boolean) => void;

/** Serves connections through Node.js's HTTP/1.1 and HTTP/2, of which neither listens itself. */
function createHttpServers({ streamServer, serve }: ListenerOptions): ServeConnection {
  const pace = createPace();
  const ofSocket = new WeakMap<Socket, Connection>();

  function serveHttp2(connection: Connection, socket: Socket): void {
    const session = performServerHandshake(socket, http2Options);
    session.on("stream", (stream, headers, _flags, rawHeaders: string[]) => {
      stream.on("error", ignore);
      if (!connection.countRequest(stream)) return;
      const expectsContinue = /^100-continue$/i.test(headers.expect ?? "");
      if (expectsContinue && !stream.closed) stream.additionalHeaders({ ":status": 100 });
      let serveNow = streamServer(connection, stream, headers);
      if (serveNow === undefined) {
        // Created at once: created later, it would miss the end of an empty body.
        const req = new Http2ServerRequest(stream, headers, {}, rawHeaders);
        const res = new Http2ServerResponse(stream) as unknown as HttpResponse;
        serveNow = () => serve(connection, req, res);
      }
      pace(connection, () => stream.closed, serveNow);
    });
    connection.beginSession(session);
  }

  const http1 = createHttp1Server({
    connectionsCheckingInterval: 1_000,
    headersTimeout: limits.beginMs,
    // Off, as it would reset slow requests that were already rejected. Our own limits apply instead.
    requestTimeout: 0,
    keepAliveTimeout: limits.keepAliveMs,
    maxHeaderSize: limits.headerBytes,
  });
  const take = (req: HttpRequest, res: ServerResponse) => {
    const connection = ofSocket.get(req.socket);
    if (!connection?.countRequest(res)) return;
    // Node.js goes on parsing what it has read even after the connection was closed.
    const isGone = () => !req.socket.writable;
    if (connection.addResponse(res)) pace(connection, isGone, () => serve(connection, req, res));
  };
  http1.on("request", take);
  // For unknown expectations, which may be ignored (RFC 9110, 10.1.1).
  http1.on("checkExpectation", take);
  http1.on("clientError", (error, socket) => ofSocket.get(socket as Socket)?.refuse(error));
  // Node.js begins to check headersTimeout as it begins to listen.
  http1.emit("listening");

  return (connection, socket, isHttp2) => {
    connection.deadline = undefined;
    if (isHttp2) return serveHttp2(connection, socket);
    ofSocket.set(socket, connection);
    http1.emit("connection", socket);
    socket.resume();
  };
}

/** Tells by the first bytes of a connection in plain text what it carries. */
function readPreface(serveConnection: ServeConnection) {
  return (connection: Connection, socket: Socket): void => {
    connection.expectWithin(limits.beginMs, "unfinished_request");
    let start = Buffer.alloc(0);
    const collect = (chunk: Buffer) => {
      start = Buffer.concat([start, chunk]);
      if (start.length < prefaceStart.length) return;
      socket.off("data", collect).pause().unshift(start);
      const isHttp2 = start.toString("latin1", 0, prefaceStart.length) === prefaceStart;
      serveConnection(connection, socket, isHttp2);
    };
    socket.on("data", collect);
  };
}

function beginTls({ server }: Tls, connections: Connections, serveConnection: ServeConnection) {
  server.on("secureConnection", (socket: TLSSocket) => {
    const connection = connections.find(socket);
    if (connection === undefined) {
      socket.destroy();
      return;
    }
    socket.on("error", ignore);
    connection.secure(socket);
    const isHttp2 = socket.alpnProtocol === "h2";
    serveConnection(connection, socket, isHttp2);
    // With a listener that comes after its own, Node.js hands the bytes to its parser by the stream, which pauses
    // with it. Read natively, a parser that is paused would get the rest of what was decrypted, and fail.
    if (!isHttp2) socket.on("data", () => {});
  });
  server.on("tlsClientError", ({ code }: NodeJS.ErrnoException, socket) => {
    // Others come from clients that have left.
    if (/^ERR_(SSL|TLS)_/.test(String(code)))
      connections.find(socket)?.report("no_handshake", code);
    socket.destroy();
  });
  return (_: Connection, socket: Socket) => void server.emit("connection", socket);
}
