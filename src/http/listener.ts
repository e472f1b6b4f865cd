import { once } from "node:events";
import { createServer, type Server as HttpServer, type ServerResponse } from "node:http";
import {
  createServer as createHttp2Server,
  createSecureServer,
  type Http2SecureServer,
  type Http2Server,
  Http2ServerRequest,
  Http2ServerResponse,
  type IncomingHttpHeaders,
  type ServerHttp2Stream,
} from "node:http2";
import { type AddressInfo, Server as NetServer } from "node:net";
import { limits } from "../limits.ts";
import type { Connection } from "./connection.ts";
import type { Connections } from "./connection-set.ts";
import { type HttpResponse, ignore, outputOf } from "./reply.ts";
import type { HttpRequest } from "./request.ts";
import type { Tls } from "./tls.ts";

interface ListenerOptions {
  /** TLS; plain text if absent. */
  tls?: Tls | undefined;
  host: string;
  /** Timeout of a call, including the arrival of its request, in milliseconds. */
  requestTimeoutMs: number;
  connections: Connections;
  /** Replies to a request, now or later; never throws. */
  serve(connection: Connection, req: HttpRequest, res: HttpResponse): void;
}

/** An open port. */
export type Listener = Awaited<ReturnType<typeof listen>>;

/** Why listening fails, by error code. */
const listenFaults: Record<string, string> = {
  EADDRINUSE: "another process uses the port; --grpc-port and --http-port set others",
  EACCES: "this user may not use the port",
  EADDRNOTAVAIL: "this machine does not have the address of --host",
  ENOTFOUND: "the name in --host is not known",
};

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
 * Listens for HTTP/2 only. Common unary calls are served on their streams, which takes less CPU than
 * Node.js's HTTP/1.1-like objects; `serve` gets all other requests.
 *
 * @param streamServer returns a function that serves the stream, or undefined to leave it to `serve`
 * @throws {Error} for operators, if listening fails
 */
export async function listenForHttp2(
  port: number,
  options: ListenerOptions,
  streamServer: (
    connection: Connection,
    stream: ServerHttp2Stream,
    headers: IncomingHttpHeaders,
  ) => (() => void) | undefined,
): Promise<Listener> {
  const { tls, connections, serve } = options;
  const server = tls
    ? createSecureServer({ ...secure(tls), ...http2Options })
    : createHttp2Server({ ...http2Options, ...socketOptions });
  server.on("stream", (stream: ServerHttp2Stream, headers, _flags, rawHeaders: string[]) => {
    stream.on("error", ignore);
    const connection = connections.of(stream.session?.socket);
    if (!connection?.followRequest(stream)) return;
    let serveNow = streamServer(connection, stream, headers);
    if (serveNow === undefined) {
      // Created at once: created later, it would miss the end of an empty body.
      const req = new Http2ServerRequest(stream, headers, {}, rawHeaders);
      const res = new Http2ServerResponse(stream);
      if (waitsForContinue(headers)) res.writeContinue();
      serveNow = () => serve(connection, req, res);
    }
    connections.pace(connection, () => stream.closed, serveNow);
  });
  return listen(server, port, options);
}

/**
 * Listens for HTTP/1.1 and, with TLS, HTTP/2.
 *
 * @throws {Error} for operators, if listening fails
 */
export async function listenForHttp(port: number, options: ListenerOptions): Promise<Listener> {
  const { tls, requestTimeoutMs, connections, serve } = options;
  const http1Options = {
    connectionsCheckingInterval: 1_000,
    headersTimeout: Math.min(limits.beginMs, requestTimeoutMs),
    // Off, as it would reset slow requests that were already rejected. Our own limits apply instead.
    requestTimeout: 0,
    keepAliveTimeout: limits.keepAliveMs,
    maxHeaderSize: limits.headerBytes,
  };
  const server = tls
    ? createSecureServer({ ...secure(tls), ...http2Options, ...http1Options, allowHTTP1: true })
    : createServer({ ...http1Options, ...socketOptions });
  const take = (req: HttpRequest, res: HttpResponse) => {
    const connection = connections.of("stream" in req ? req.stream.session?.socket : req.socket);
    if (!connection?.followRequest(outputOf(res))) return;
    const serveNow = () => serve(connection, req, res);
    if ("stream" in req) {
      const { stream } = req;
      connections.pace(connection, () => stream.closed, serveNow);
      return;
    }
    const isOver = !connection.followResponse(res as ServerResponse);
    // Node.js goes on parsing what it has read even after the connection was closed.
    const isGone = () => res.destroyed || !req.socket?.writable;
    if (!isOver && !isGone()) connections.pace(connection, isGone, serveNow);
  };
  server.on("request", take);
  // For unknown expectations, which may be ignored (RFC 9110, 10.1.1), and over HTTP/2 "100-Continue".
  server.on("checkExpectation", (req: HttpRequest, res: HttpResponse) => {
    if (waitsForContinue(req.headers)) res.writeContinue();
    take(req, res);
  });
  return listen(server, port, options);
}

function waitsForContinue({ expect }: IncomingHttpHeaders): boolean {
  return expect?.toLowerCase() === "100-continue";
}

function secure(tls: Tls) {
  return { ...tls.options(), ...socketOptions, handshakeTimeout: limits.beginMs };
}

async function listen(
  server: HttpServer | Http2Server | Http2SecureServer,
  port: number,
  { tls, host, connections }: ListenerOptions,
) {
  connections.follow(server);
  if ("setSecureContext" in server) {
    tls?.onReload((context, areCasNew) => {
      server.setSecureContext(context);
      if (areCasNew) connections.distrustCertificates();
    });
  }
  await once(server.listen({ port, host }), "listening").catch((error: NodeJS.ErrnoException) => {
    const { code = "", message } = error;
    throw new Error(`cannot listen on ${host}:${port}: ${listenFaults[code] ?? message}`);
  });
  // Such as a connection that was gone before it was accepted.
  server.on("error", ignore);
  return {
    port: (server.address() as AddressInfo).port,
    /** Stops accepting connections; open ones stay. */
    // http.Server's close would also cut off connections whose requests are still arriving.
    close: () => void NetServer.prototype.close.call(server),
  };
}
