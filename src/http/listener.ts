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
import type { Connection } from "./connection.ts";
import type { Connections } from "./connection-set.ts";
import { maxStreams } from "./http2-session.ts";
import { type HttpResponse, ignore } from "./reply.ts";
import type { HttpRequest } from "./request.ts";
import type { Tls } from "./tls.ts";

interface ListenerOptions {
  /** Encrypts the connections; they are not if absent. */
  tls?: Tls | undefined;
  host: string;
  /** Other processes may listen on the port, too. */
  reusePort?: boolean;
  /** Timeout of a call, in milliseconds, within which its request has to arrive. */
  requestTimeoutMs: number;
  connections: Connections;
  /** Replies to a request, now or later; it does not throw. */
  serve(connection: Connection, req: HttpRequest, res: HttpResponse): void;
}

/** A port that is listened on. */
export type Listener = Awaited<ReturnType<typeof listen>>;

/** Why an address cannot be listened on, by the code of the error. */
const listenFaults: Record<string, string> = {
  EADDRINUSE: "another process uses the port; --grpc-port and --http-port set others",
  EACCES: "this user may not use the port",
  EADDRNOTAVAIL: "this machine does not have the address of --host",
  ENOTFOUND: "the name in --host is not known",
};

const maxHeaderBytes = 16 * 1024;

/** Longest time that the headers of a request may take, in milliseconds; a TLS handshake too. */
const maxHeadersMs = 10_000;

/** Longer than common load balancers keep idle connections, so that they never use one that is closing. */
const keepAliveTimeoutMs = 75_000;

const socketOptions = { noDelay: true, keepAlive: true, keepAliveInitialDelay: 60_000 };

const http2Options = {
  settings: { maxConcurrentStreams: maxStreams, maxHeaderListSize: maxHeaderBytes },
  // No limit: Node.js never subtracts what was unsent when a stream was reset, and would refuse all
  // further calls of the connection.
  maxSessionMemory: 2 ** 32 - 1,
  // Node.js still counts streams that were reset if it reads those that replace them with the reset.
  maxSessionRejectedStreams: 1_000,
  // Callers with short deadlines share a connection, and a busy machine has many of them end at once.
  // With Node.js's default of 33 a second, the others' calls would end with them.
  streamResetBurst: 2_000,
  streamResetRate: 1_500,
};

/**
 * Listens for HTTP/2 alone. Calls of the common form are served on their streams, which takes less CPU
 * than objects that look like those of HTTP/1.1; `serve` gets all other requests.
 *
 * @param streamServer returns what serves a stream, or undefined to leave it
 * @throws {Error} for operators to read, if it cannot listen
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
    if (connection === undefined) return;
    const serveStream = streamServer(connection, stream, headers);
    if (serveStream) {
      connection.pace?.(stream, serveStream);
      return;
    }
    // Created at once: a later one would not see the end of a body without bytes.
    const req = new Http2ServerRequest(stream, headers, {}, rawHeaders);
    const res = new Http2ServerResponse(stream);
    continueWhenRead(req, res);
    connection.pace?.(stream, () => serve(connection, req, res));
  });
  return listen(server, port, options);
}

/**
 * Listens for HTTP/1.1 and, with TLS, HTTP/2.
 *
 * @throws {Error} for operators to read, if it cannot listen
 */
export async function listenForHttp(port: number, options: ListenerOptions): Promise<Listener> {
  const { tls, requestTimeoutMs, connections, serve } = options;
  const http1Options = {
    connectionsCheckingInterval: 1_000,
    headersTimeout: Math.min(maxHeadersMs, requestTimeoutMs),
    // Off: a request and its rest have limits of ours, and this one would reset slow ones that were refused.
    requestTimeout: 0,
    keepAliveTimeout: keepAliveTimeoutMs,
    maxHeaderSize: maxHeaderBytes,
  };
  const server = tls
    ? createSecureServer({ ...secure(tls), ...http2Options, ...http1Options, allowHTTP1: true })
    : createServer({ ...http1Options, ...socketOptions });
  const take = (req: HttpRequest, res: HttpResponse) => {
    continueWhenRead(req, res);
    const connection = connections.of("stream" in req ? req.stream.session?.socket : req.socket);
    if (connection === undefined) return;
    if ("stream" in req) {
      connection.pace?.(req.stream, () => serve(connection, req, res));
      return;
    }
    const isOver = !connection.followResponse(res as ServerResponse);
    // Node.js parses what it has read, also after the connection was closed.
    const isGone = () => res.destroyed || !req.socket?.writable;
    if (!isOver && !isGone()) connections.paceRequest(isGone, () => serve(connection, req, res));
  };
  server.on("request", take);
  server.on("checkContinue", take);
  // For an unknown expectation, which may be ignored (RFC 9110, 10.1.1), and for "100-Continue" over HTTP/2.
  server.on("checkExpectation", take);
  return listen(server, port, options);
}

function secure(tls: Tls) {
  return { ...tls.options(), ...socketOptions, handshakeTimeout: maxHeadersMs };
}

/** Sends 100 Continue when the body is first read, so that a client that is refused never sends it. */
function continueWhenRead(req: HttpRequest, res: HttpResponse): void {
  if (req.headers.expect?.toLowerCase() !== "100-continue") return;
  req.once("resume", () => {
    if (!res.headersSent) res.writeContinue();
  });
}

async function listen(
  server: HttpServer | Http2Server | Http2SecureServer,
  port: number,
  { tls, host, reusePort, connections }: ListenerOptions,
) {
  connections.follow(server);
  if ("setSecureContext" in server) {
    tls?.onReload((context, areCasNew) => {
      server.setSecureContext(context);
      if (areCasNew) connections.distrustCertificates();
    });
  }
  await once(server.listen({ port, host, reusePort }), "listening").catch(
    (error: NodeJS.ErrnoException) => {
      const { code = "", message } = error;
      throw new Error(`cannot listen on ${host}:${port}: ${listenFaults[code] ?? message}`);
    },
  );
  // Such as of a connection that was gone before it was accepted.
  server.on("error", ignore);
  return {
    port: (server.address() as AddressInfo).port,
    /** Takes no new connections; those that are open stay. */
    // The close of http.Server would also cut connections whose requests are still arriving.
    close: () => void NetServer.prototype.close.call(server),
  };
}
