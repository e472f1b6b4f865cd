import { once } from "node:events";
import { createServer as createHttp1Server, type ServerResponse } from "node:http";
import {
  createServer as createHttp2Server,
  Http2ServerRequest,
  Http2ServerResponse,
  type IncomingHttpHeaders,
  type ServerHttp2Session,
  type ServerHttp2Stream,
} from "node:http2";
import {
  type AddressInfo,
  createServer as createTcpServer,
  type Server,
  type Socket,
} from "node:net";
import { createServer as createTlsServer, type TLSSocket } from "node:tls";
import { limits } from "../limits.ts";
import type { Connection } from "./connection.ts";
import type { Connections } from "./connection-set.ts";
import { createPace } from "./pace.ts";
import { type HttpResponse, ignore } from "./reply.ts";
import type { HttpRequest } from "./request.ts";
import type { Tls } from "./tls.ts";

interface ListenerOptions {
  host: string;
  /** Each serves the same; 0: a free one. */
  ports: number[];
  /** TLS; plain text if absent. */
  tls?: Tls | undefined;
  /** Timeout of a call, including the arrival of its request, in milliseconds. */
  requestTimeoutMs: number;
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

/** The open ports. */
export type Listener = Awaited<ReturnType<typeof listen>>;

/** Why listening fails, by error code. */
const listenFaults: Record<string, string> = {
  EADDRINUSE: "another process uses the port; --port sets others",
  EACCES: "this user may not use the port",
  EADDRNOTAVAIL: "this machine does not have the address of --host",
  ENOTFOUND: "the name in --host is not known",
};

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
  const servers: Server[] = [];
  const close = () => {
    for (const server of servers) server.close();
  };
  const opened = ports.map(async (port) => {
    const server = tls
      ? createSecureServer(tls, connections, serveConnection)
      : createPlainServer(connections, serveConnection);
    servers.push(server);
    await once(server.listen({ port, host }), "listening").catch((error: NodeJS.ErrnoException) => {
      const { code = "", message } = error;
      throw new Error(`cannot listen on ${host}:${port}: ${listenFaults[code] ?? message}`);
    });
    // Such as a connection that was gone before it was accepted.
    server.on("error", ignore);
    return (server.address() as AddressInfo).port;
  });
  return {
    ports: await Promise.all(opened).catch((error) => {
      close();
      throw error;
    }),
    /** Stops accepting connections; open ones stay. */
    close,
  };
}

type ServeConnection = (connection: Connection, socket: Socket, isHttp2: boolean) => void;

/** Creates Node.js's servers, which get their connections here instead of listening. */
function createHttpServers(options: ListenerOptions): ServeConnection {
  const { requestTimeoutMs, streamServer, serve } = options;
  const pace = createPace();
  const ofSession = new WeakMap<ServerHttp2Session, Connection>();
  const ofSocket = new WeakMap<Socket, Connection>();

  const http2 = createHttp2Server(http2Options);
  http2.on("stream", (stream: ServerHttp2Stream, headers, _flags, rawHeaders: string[]) => {
    stream.on("error", ignore);
    const connection = stream.session && ofSession.get(stream.session as ServerHttp2Session);
    if (!connection?.countRequest(stream)) return;
    let serveNow = streamServer(connection, stream, headers);
    if (serveNow === undefined) {
      // Created at once: created later, it would miss the end of an empty body.
      const req = new Http2ServerRequest(stream, headers, {}, rawHeaders);
      const res = new Http2ServerResponse(stream);
      if (/^100-continue$/i.test(headers.expect ?? "")) res.writeContinue();
      serveNow = () => serve(connection, req, res);
    }
    pace(connection, () => stream.closed, serveNow);
  });

  const http1 = createHttp1Server({
    connectionsCheckingInterval: 1_000,
    headersTimeout: Math.min(limits.beginMs, requestTimeoutMs),
    // Off, as it would reset slow requests that were already rejected. Our own limits apply instead.
    requestTimeout: 0,
    keepAliveTimeout: limits.keepAliveMs,
    maxHeaderSize: limits.headerBytes,
  });
  const take = (req: HttpRequest, res: ServerResponse) => {
    const connection = ofSocket.get(req.socket);
    if (!connection?.countRequest(res)) return;
    const isOver = !connection.addResponse(res);
    // Node.js goes on parsing what it has read even after the connection was closed.
    const isGone = () => res.destroyed || !req.socket?.writable;
    if (!isOver && !isGone()) pace(connection, isGone, () => serve(connection, req, res));
  };
  http1.on("request", take);
  // For unknown expectations, which may be ignored (RFC 9110, 10.1.1).
  http1.on("checkExpectation", take);
  http1.on("clientError", (error, socket) => ofSocket.get(socket as Socket)?.refuse(error));
  // Node.js begins to check headersTimeout as it begins to listen.
  http1.emit("listening");

  let opening: Connection | undefined;
  http2.on("session", (session) => {
    if (opening === undefined) return;
    ofSession.set(session, opening);
    opening.beginSession(session);
  });

  return (connection, socket, isHttp2) => {
    connection.deadline = undefined;
    if (isHttp2) {
      opening = connection;
      http2.emit("connection", socket);
      return;
    }
    ofSocket.set(socket, connection);
    // A client may end its side before it has the reply.
    socket.allowHalfOpen = true;
    http1.emit("connection", socket);
    socket.resume();
  };
}

function createPlainServer(connections: Connections, serveConnection: ServeConnection): Server {
  return createTcpServer(socketOptions, (socket) => {
    const connection = connections.add(socket);
    if (connection === undefined) return;
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
  });
}

function createSecureServer(
  tls: Tls,
  connections: Connections,
  serveConnection: ServeConnection,
): Server {
  const server = createTlsServer({
    ...tls.options(),
    ...socketOptions,
    handshakeTimeout: limits.beginMs,
    ALPNProtocols: ["h2", "http/1.1"],
  });
  // Runs before Node.js starts TLS on the connection.
  server.prependListener("connection", connections.add);
  server.on("secureConnection", (socket: TLSSocket) => {
    const connection = connections.find(socket);
    if (connection === undefined) {
      socket.destroy();
      return;
    }
    connections.secure(connection, socket);
    serveConnection(connection, socket, socket.alpnProtocol === "h2");
  });
  server.on("tlsClientError", ({ code }: NodeJS.ErrnoException, socket) => {
    // Others come from clients that have left.
    if (/^ERR_(SSL|TLS)_/.test(String(code)))
      connections.find(socket)?.report("no_handshake", code);
    socket.destroy();
  });
  tls.onReload((context, areCasNew) => {
    server.setSecureContext(context);
    if (areCasNew) connections.distrustCertificates();
  });
  return server;
}
