import { once } from "node:events";
import { type AddressInfo, createServer, type Server, type Socket } from "node:net";
import { createServer as createTlsServer, type TLSSocket } from "node:tls";
import { type Connection, type EngineOptions, handshakeTimeoutMs } from "./connection.ts";
import type { ConnectionUsage } from "./connection-usage.ts";
import type { Connections } from "./connections.ts";
import { maxTimerMs } from "./exchange.ts";
import { createHttp1 } from "./http1.ts";
import { acceptHttp2 } from "./http2.ts";
import { closeWhenGone, type Tls } from "./tls.ts";

/** What a {@link startListener listener} serves, and within which limits. */
export interface ListenerOptions extends EngineOptions {
  /** The versions of HTTP; without TLS, a port speaks the first of them only. */
  versions: readonly ["h2"] | readonly ["http/1.1", "h2"];
  /** Encrypts the connections; they are not if absent. */
  tls?: Tls | undefined;
  host: string;
  /** 0 picks a free one. */
  port: number;
  /** The age at which a client is asked to connect anew, in milliseconds; never if absent. */
  maxConnectionAgeMs?: number | undefined;
  /** The connections of this listener and others. */
  connections: Connections;
}

/** A port that is listened on. */
export interface Listener {
  readonly port: number;
  /**
   * Asks clients over HTTP/1.1 with each reply to send the next request on another connection: a
   * request that crosses the end of an idle connection is lost.
   */
  announceDrain(): void;
  /**
   * Takes no new connections, and tells clients to make no more calls on those that are open;
   * resolves once all whose handshake is over have been told.
   */
  drain(): Promise<void>;
  /** Resolves when the last connection has closed after that. */
  readonly closed: Promise<void>;
  /** Closes what is still open at once. */
  destroy(): void;
}

/** Why an address cannot be listened on, by the code of the error. */
const listenFaults: Record<string, string> = {
  EADDRINUSE: "another process uses the port",
  EACCES: "this user may not use the port",
  EADDRNOTAVAIL: "this machine does not have the address",
  ENOTFOUND: "the host is not known",
};

/**
 * Sends small writes at once, and finds clients that vanished while a watch is open, in which
 * nothing is sent.
 */
const socketOptions = { noDelay: true, keepAlive: true, keepAliveInitialDelay: 60_000 };

/** The fraction by which the ages of connections differ, so that they do not all end at once. */
const ageSpread = 0.1;

/**
 * Listens on a port for HTTP/1.1 and HTTP/2.
 *
 * @throws {Error} in plain words, if it cannot listen
 */
export async function startListener(options: ListenerOptions): Promise<Listener> {
  const { versions, tls, host, port, requestTimeoutMs, maxConnectionAgeMs, connections } = options;
  const http1 = createHttp1(options);
  const open = new Map<Socket, Connection | undefined>();
  let isDraining = false;

  /** @param version negotiated by ALPN (RFC 7301), or the only one of the port */
  function accept(socket: Socket, version: string): void {
    const usage = connections.begin(socket, version === "h2");
    if (!usage || socket.destroyed || !versions.some((each) => each === version)) {
      socket.destroy();
      return;
    }
    const connection =
      version === "h2" ? acceptHttp2(socket, usage, options) : http1.accept(socket, usage);
    open.set(socket, connection);
    socket.once("close", () => open.delete(socket));
    if (isDraining) connection.drain();
    else limitAge(socket, connection, usage);
  }

  /** Closes a connection once it has reached its age and the calls that it carries have ended. */
  function limitAge(socket: Socket, connection: Connection, usage: ConnectionUsage): void {
    if (maxConnectionAgeMs === undefined) return;
    const spread = 1 + ageSpread * (2 * Math.random() - 1);
    const ageMs = Math.min(maxConnectionAgeMs * spread, maxTimerMs);
    const close = () => {
      if (usage.open > usage.watches) timer = setTimeout(close, requestTimeoutMs).unref();
      else socket.destroy();
    };
    let timer = setTimeout(() => {
      connection.retire();
      timer = setTimeout(close, requestTimeoutMs).unref();
    }, ageMs).unref();
    socket.once("close", () => clearTimeout(timer));
  }

  /** Registers a connection before its TLS handshake, so that limits and shutdown cover it. */
  function register(socket: Socket): void {
    open.set(socket, undefined);
    socket.on("error", () => {});
    socket.once("close", () => open.delete(socket));
    connections.add(socket, tls !== undefined);
  }

  function createListener(): Server {
    if (tls === undefined) {
      return createServer(socketOptions, (socket) => {
        register(socket);
        accept(socket, versions[0]);
      });
    }
    const server = createTlsServer(
      {
        ...tls.options(),
        // What a server prefers comes first.
        ALPNProtocols: versions.toReversed(),
        handshakeTimeout: handshakeTimeoutMs,
        ...socketOptions,
      },
      (socket: TLSSocket) => {
        closeWhenGone(socket);
        accept(socket, socket.alpnProtocol || "http/1.1");
      },
    );
    server.on("connection", register);
    // Node.js reports a handshake that took too long, and leaves its connection open.
    server.on("tlsClientError", (_, socket) => socket.destroy());
    tls.onReload((context) => server.setSecureContext(context));
    return server;
  }

  const server = createListener();
  const closed = new Promise<void>((resolve) => server.once("close", resolve));
  return {
    port: await listen(server, host, port),
    announceDrain: http1.announceClose,
    async drain() {
      isDraining = true;
      server.close();
      await Promise.all(Array.from(open.values(), (connection) => connection?.drain()));
    },
    closed,
    destroy() {
      server.close();
      http1.close();
      // What encrypts another socket comes after that. Node.js crashes if it is destroyed second, in
      // the same turn of the event loop, while something is to be written.
      for (const socket of [...open.keys()].reverse()) socket.destroy();
    },
  };
}

async function listen(server: Server, host: string, port: number): Promise<number> {
  await once(server.listen(port, host), "listening").catch((error: NodeJS.ErrnoException) => {
    const { code = "", message } = error;
    throw new Error(`cannot listen on ${host}:${port}: ${listenFaults[code] ?? message}`);
  });
  // Such as of a connection that was gone before it was accepted.
  server.on("error", () => {});
  return (server.address() as AddressInfo).port;
}
