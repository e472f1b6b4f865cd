import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { allowOrigin, answerPreflight } from "./cors.ts";
import { findForeignPage } from "./foreign-page.ts";
import { answerProblem, HttpError } from "./problem.ts";

/** Answers a request, or leaves it to the next by returning false. */
export type HttpHandler = (req: IncomingMessage, res: ServerResponse) => boolean;

/** The path of a request without its query. */
export function pathOf({ url = "" }: IncomingMessage): string {
  const end = url.indexOf("?");
  return end === -1 ? url : url.slice(0, end);
}

/** The headers of an answer in JSON, which may hold a record. */
export const jsonHeaders = { "content-type": "application/json", "cache-control": "no-store" };

/** Answers with JSON. */
export function answerJson(res: ServerResponse, body: string, status = 200): void {
  res.writeHead(status, { ...jsonHeaders, "content-length": Buffer.byteLength(body) });
  res.end(body);
}

/** What an {@link startHttpServer HTTP server} serves, and within which limits. */
export interface HttpServerOptions {
  /** Asked in turn until one takes the request. */
  handlers: HttpHandler[];
  /** The origins whose pages may call, or `*` for any; empty for none (CORS). */
  corsOrigins: string[];
  /** Whether requests of other pages are refused, which a browser on this machine could send. */
  refusesForeignPages: boolean;
  host: string;
  /** 0 picks a free one. */
  port: number;
  /** For how long a request may be on its way, body included, in milliseconds. */
  requestTimeoutMs: number;
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

/** For how long a connection may make no progress once its request is there. */
const idleTimeoutMs = 30_000;

/**
 * Serves HTTP/1.1.
 *
 * @throws {Error} in plain words, if it cannot listen
 */
export async function startHttpServer(options: HttpServerOptions): Promise<HttpServer> {
  const { handlers, corsOrigins, refusesForeignPages, host, port, requestTimeoutMs } = options;
  const open = new Set<ServerResponse>();
  let draining = false;

  const server = createServer({ connectionsCheckingInterval: 1_000 }, (req, res) => {
    open.add(res);
    res.once("close", () => open.delete(res));
    keepConnection(req, res);
    if (draining) res.setHeader("connection", "close");
    const foreign = refusesForeignPages ? findForeignPage(req, corsOrigins) : undefined;
    if (foreign !== undefined) {
      answerProblem(res, new HttpError(403, foreign));
      return;
    }
    if (allowOrigin(req, res, corsOrigins) && answerPreflight(req, res)) return;
    try {
      if (!handlers.some((handle) => handle(req, res))) res.writeHead(404).end();
    } catch {
      // Such as a Host that is no name, of which no URL can be made.
      res.writeHead(400, { connection: "close" }).end();
    }
  });
  server.requestTimeout = requestTimeoutMs;
  server.headersTimeout = requestTimeoutMs;
  server.keepAliveTimeout = keepAliveTimeoutMs;
  server.setTimeout(requestTimeoutMs + idleTimeoutMs);

  await new Promise<void>((resolve, reject) => {
    server.once("error", (error) => {
      reject(new Error(`cannot listen on ${host}:${port}: ${error.message}`));
    });
    server.listen(port, host, resolve);
  });

  return {
    port: (server.address() as AddressInfo).port,
    async drain() {
      draining = true;
      for (const res of open) {
        if (!res.headersSent) res.setHeader("connection", "close");
        res.once("close", () => server.closeIdleConnections());
      }
      await new Promise((resolve) => server.close(resolve));
    },
    destroy: () => server.closeAllConnections(),
  };
}

/**
 * Lets a connection be used again after a request that was answered before all of it was
 * read: leaving its iterator would destroy it, and what is left is read and dropped.
 */
function keepConnection(req: IncomingMessage, res: ServerResponse): void {
  req[Symbol.asyncIterator] = () => req.iterator({ destroyOnReturn: false });
  res.once("finish", () => {
    if (req.complete) return;
    req.removeAllListeners("readable");
    // The stream notices a turn later that nobody listens any more.
    setImmediate(() => req.resume());
  });
}
