import { randomBytes } from "node:crypto";
import { Code, ConnectError } from "@connectrpc/connect";
import type { Logger } from "pino";
import { allowOrigin, sendPreflight } from "../http/cors.ts";
import { findCrossOrigin } from "../http/cross-origin.ts";
import type { Exchange } from "../http/exchange.ts";
import { internal } from "../service/errors.ts";
import { isGrpc, sendStatus } from "./grpc.ts";
import { httpError, sendProblem } from "./problem.ts";

/**
 * Replies to a request, or leaves it to the next handler by returning undefined. What it throws
 * is replied to if it is a ConnectError, or else a fault.
 */
export type Handler = (exchange: Exchange) => Promise<void> | undefined;

/** What a {@link createRouter router} needs. */
interface RouterOptions {
  /** Asked in turn until one takes the request. */
  handlers: readonly Handler[];
  /** The origins whose pages may call, or `*` for any; empty for none (CORS). */
  corsOrigins: string[];
  /**
   * The hosts that requests may name; cross-origin requests are refused too. Neither is checked if
   * absent.
   */
  hosts: ReadonlySet<string> | undefined;
  /** Logs a cross-origin request that was refused. */
  onRefusal?(fields: object): void;
  /** Logs faults. */
  log: Logger;
}

/** A host or an origin. Anything else that their headers hold is not logged. */
const namesHost = /^([a-z]+:\/\/)?[\w.:[\]-]{1,255}$/;

/** Creates the router of a port, which replies to every request, whatever happens. */
export function createRouter(options: RouterOptions) {
  const { handlers, corsOrigins, hosts, log } = options;
  function route(exchange: Exchange): Promise<void> | undefined {
    const crossOrigin = hosts && findCrossOrigin(exchange, hosts, corsOrigins);
    if (crossOrigin !== undefined) {
      const { socket, authority: host, headers } = exchange;
      const peer = `${socket.remoteAddress}:${socket.remotePort}`;
      const origin = namesHost.exec(headers.origin ?? "")?.[0];
      const fields = { peer, host: namesHost.exec(host)?.[0], origin, detail: crossOrigin };
      options.onRefusal?.({ reason: "CROSS_ORIGIN", ...fields });
      throw httpError(403, crossOrigin);
    }
    if (corsOrigins.length > 0 && allowOrigin(exchange, corsOrigins) && sendPreflight(exchange)) {
      return undefined;
    }
    for (const handle of handlers) {
      const handled = handle(exchange);
      if (handled !== undefined) return handled;
    }
    throw isGrpc(exchange) && exchange.httpVersion === "2"
      ? new ConnectError("unknown method", Code.Unimplemented)
      : httpError(404, "there is nothing at this path");
  }

  /** What to reply; a fault is logged. */
  function toReply(error: unknown): ConnectError {
    if (error instanceof ConnectError) return error;
    const id = randomBytes(16).toString("hex");
    log.error({ err: error, traceId: id }, "internal error");
    return internal(id, error);
  }

  /** Ends a request that nobody replied to: with the error, if a status can still be sent. */
  function fail(exchange: Exchange, error: unknown): void {
    if (exchange.isClosed) return;
    exchange.usage.refuse();
    const reply = toReply(error);
    try {
      if (exchange.headersSent) throw reply;
      if (isGrpc(exchange) && exchange.httpVersion === "2") sendStatus(exchange, reply);
      else sendProblem(exchange, reply);
    } catch {
      exchange.destroy();
    }
  }

  return (exchange: Exchange): void => {
    try {
      route(exchange)?.catch((error) => fail(exchange, error));
    } catch (error) {
      fail(exchange, error);
    }
  };
}
