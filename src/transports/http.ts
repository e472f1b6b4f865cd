import { randomBytes } from "node:crypto";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import { constants, createSecureServer, type Http2ServerRequest } from "node:http2";
import type { Socket } from "node:net";
import type { Logger } from "pino";
import { internal } from "../service/errors.ts";
import { allowOrigin, answerPreflight } from "./cors.ts";
import { findCrossOrigin } from "./cross-origin.ts";
import { isClosed } from "./exchange.ts";
import { listen } from "./listen.ts";
import { answerProblem, HttpError } from "./problem.ts";
import { closeWhenGone, type Tls } from "./tls.ts";

/**
 * Replies to a request, or leaves it to the next handler by returning undefined. What it rejects
 * with is a fault, unless the client has left.
 */
export type HttpHandler = (req: IncomingMessage, res: ServerResponse) => Promise<void> | undefined;

/** What an {@link startHttpServer HTTP server} serves, and within which limits. */
export interface HttpServerOptions {
  /** Asked in turn until one takes the request. */
  handlers: HttpHandler[];
  /** The origins whose pages may call, or `*` for any; empty for none (CORS). */
  corsOrigins: string[];
  /** Whether requests of other pages are refused, which a browser on this machine could send. */
  refusesCrossOrigin: boolean;
  /** Encrypts the connections, and offers HTTP/2 on them; they are not if absent. */
  tls?: Tls | undefined;
  host: string;
  /** 0 picks a free one. */
  port: number;
  /** Timeout of a request, body included, in milliseconds. */
  requestTimeoutMs: number;
  /** Is told of requests of other pages that were refused. */
  onRefusal?(fields: object): void;
  /** Is told of faults. */
  log: Logger;
}

/** A running HTTP server. */
export interface HttpServer {
  readonly port: number;
  /**
   * Takes no new connections, and ends each connection after its answer; resolves when
   * the last has closed.
   */
  drain(): Promise<void>;
  /** Closes what is still open at once. */
  destroy(): void;
}

/** Longer than the idle timeout of common load balancers, which then never lose a race. */
const keepAliveTimeoutMs = 75_000;

/** Timeout of a connection without progress once its request is there, in milliseconds. */
const idleTimeoutMs = 30_000;

/** Timeout of a connection of HTTP/2 without progress; its streams have their own, in milliseconds. */
const sessionIdleMs = 5 * 60_000;

/** The most calls that one connection of HTTP/2 may have open. */
const maxConcurrentStreams = 128;

/**
 * Serves HTTP/1.1 and, on TLS, HTTP/2 to those who ask for it (ALPN, RFC 7301).
 *
 * @throws {Error} in plain words, if it cannot listen
 */
export async function startHttpServer(options: HttpServerOptions): Promise<HttpServer> {
  const { handlers, corsOrigins, refusesCrossOrigin, host, port, requestTimeoutMs, log } = options;
  // The responses on each connection of HTTP/1.1, in order, of which the first may be closed: V8
  // keeps what has passed through a busy Set alive for long, which costs a sixth of the rate.
  const pending = new Map<Socket, ServerResponse[]>();
  const sockets = new Set<Socket>();
  let draining = false;

  const server = createHttpServer(options, (req, res) => {
    // Node.js emits errors of a request behind its end too, when whoever handles it may no
    // longer listen.
    req.on("error", () => {});
    res.on("error", () => {});
    if (req.httpVersionMajor === 1) follow(res);
    else limitStream(req as unknown as Http2ServerRequest, res, requestTimeoutMs);
    // What follows a request to upgrade in one packet is not read.
    if (draining || req.headers.upgrade !== undefined) endConnection(res);
    serve(req, res).catch((error) => fail(req, res, error));
  });

  async function serve(req: IncomingMessage, res: ServerResponse): Promise<void> {
    const crossOrigin = refusesCrossOrigin ? findCrossOrigin(req, corsOrigins) : undefined;
    if (crossOrigin !== undefined) {
      const { host, origin } = req.headers;
      const peer = `${req.socket.remoteAddress}:${req.socket.remotePort}`;
      options.onRefusal?.({ peer, reason: crossOrigin, host, origin });
      throw new HttpError(403, crossOrigin);
    }
    if (allowOrigin(req, res, corsOrigins) && answerPreflight(req, res)) return;
    for (const handle of handlers) {
      const handled = handle(req, res);
      if (handled !== undefined) return handled;
    }
    throw new HttpError(404, "there is nothing at this path");
  }

  /** Ends a request that nobody replied to: with the error, if a status can still be sent. */
  function fail(req: IncomingMessage, res: ServerResponse, error: unknown): void {
    if (isClosed(req, res)) return;
    const id = randomBytes(16).toString("hex");
    const isFault = !(error instanceof HttpError);
    if (isFault) log.error({ err: error, traceId: id }, "internal error");
    try {
      if (res.headersSent) throw error;
      answerProblem(res, isFault ? internal(id, error) : error);
    } catch {
      res.destroy();
    }
  }

  function follow(res: ServerResponse): void {
    const { socket } = res.req;
    const responses = pending.get(socket) ?? followConnection(socket);
    while (responses[0]?.closed) responses.shift();
    responses.push(res);
  }

  function followConnection(socket: Socket): ServerResponse[] {
    const responses: ServerResponse[] = [];
    pending.set(socket, responses);
    // Node.js closes them too, but not behind CONNECT, which takes the connection away from HTTP.
    socket.once("close", () => {
      pending.delete(socket);
      for (const res of responses) if (!res.closed) res.emit("close");
    });
    return responses;
  }

  server.setTimeout(requestTimeoutMs + idleTimeoutMs);
  server.on("connection", (socket: Socket) => {
    sockets.add(socket);
    socket.on("error", () => {});
    socket.once("close", () => sockets.delete(socket));
  });

  return {
    port: await listen(server, host, port),
    async drain() {
      draining = true;
      for (const responses of pending.values()) {
        const last = responses.at(-1);
        if (last === undefined || last.closed) continue;
        endConnection(last);
        last.once("close", () => server.closeIdleConnections());
      }
      await new Promise((resolve) => server.close(resolve));
    },
    destroy() {
      for (const socket of sockets) socket.destroy();
    },
  };
}

function createHttpServer(
  { tls, requestTimeoutMs }: HttpServerOptions,
  listener: (req: IncomingMessage, res: ServerResponse) => void,
): Server {
  const limits = {
    connectionsCheckingInterval: 1_000,
    requestTimeout: requestTimeoutMs,
    headersTimeout: requestTimeoutMs,
    keepAliveTimeout: keepAliveTimeoutMs,
  };
  if (tls === undefined) return createServer(limits, listener);
  const server = createSecureServer({
    ...tls.options(),
    ...limits,
    allowHTTP1: true,
    handshakeTimeout: requestTimeoutMs,
    settings: { maxConcurrentStreams },
  });
  tls.onReload((context) => server.setSecureContext(context));
  // A client that breaks off, or the protocol, has lost its connection already.
  server.on("sessionError", () => {});
  server.on("session", (session) => session.setTimeout(sessionIdleMs));
  server.on("secureConnection", closeWhenGone);
  // Requests and responses of HTTP/2 have the interface of those of HTTP/1.1 by design.
  server.on("request", listener as never);
  return server as unknown as Server;
}

/** Makes the answer the last one of its connection, where HTTP/1.1 says so by a header. */
function endConnection(res: ServerResponse): void {
  if (res.req.httpVersionMajor === 1 && !res.headersSent) res.setHeader("connection", "close");
}

/** Limits a stream of HTTP/2 as Node.js limits a connection of HTTP/1.1. */
function limitStream(req: Http2ServerRequest, res: ServerResponse, requestTimeoutMs: number): void {
  const { stream } = req;
  const close = () => stream.close(constants.NGHTTP2_CANCEL);
  const timer = setTimeout(() => {
    // A request without a body is never read, and so never complete.
    if (!req.complete && !stream.endAfterHeaders) close();
  }, requestTimeoutMs);
  stream.once("close", () => clearTimeout(timer));
  stream.setTimeout(requestTimeoutMs + idleTimeoutMs, close);
  // What is answered before it is all there need not be sent (RFC 9113, 8.1).
  res.once("finish", () => {
    if (!req.complete) stream.close(constants.NGHTTP2_NO_ERROR);
  });
}
