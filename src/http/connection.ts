import type { Exchange } from "./exchange.ts";

/** The most that the headers of a request may weigh, in bytes. */
export const maxHeaderBytes = 16 * 1024;

/** Timeout of the handshakes of TLS and HTTP/2, in milliseconds. */
export const handshakeTimeoutMs = 10_000;

/** What both versions of HTTP need to serve requests. */
export interface EngineOptions {
  /** Replies to a request, now or later; it does not throw. */
  serve(exchange: Exchange): void;
  /** Timeout of a request of HTTP/1.1, body included, in milliseconds. */
  requestTimeoutMs: number;
}

/** A connection of either version of HTTP. */
export interface Connection {
  /** Asks the client to send its next requests on another connection. */
  retire(): void;
  /**
   * Lets what it carries finish, takes nothing more, and closes; resolves when the client was told,
   * and all that it had sent before is known.
   */
  drain(): Promise<void>;
}
