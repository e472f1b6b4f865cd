import { existsSync, readFileSync } from "node:fs";
import type { ServerHttp2Session } from "node:http2";
import type { Server, Socket } from "node:net";
import { Connection, keyOf, type OnEnd } from "./connection.ts";
import { createPaces, guardSession } from "./http2-session.ts";
import { describePeer } from "./peer.ts";
import { ignore } from "./reply.ts";

/** The fraction by which the ages of connections differ, so that they do not all end at once. */
const ageSpread = 0.1;

/** How often ages are looked at, in milliseconds. */
const ageCheckMs = 500;

/**
 * How long a connection is retired before its client's certificate expires, in milliseconds, so that one
 * with a renewed certificate can take over; one that was opened later, after half of the time left.
 */
const certificateNoticeMs = 60_000;

/** Time in which certificates are still accepted after the CAs have changed, in milliseconds. */
const distrustMs = 10_000;

/** The time without calls after which a connection makes room before others do, in milliseconds. */
const idleMs = 5_000;

/** How many file descriptors the process may need besides those of connections. */
const otherDescriptors = 50;

/**
 * As many connections as file descriptors allow, where /proc shows the limit: without a free one,
 * a new connection could not even be accepted to replace another.
 *
 * @param max the most that are wanted
 * @param onWarning called if they are fewer
 */
export function withinDescriptors(max: number, onWarning: (message: string) => void): number {
  const file = "/proc/self/limits";
  const limits = existsSync(file) ? readFileSync(file, "utf8") : "";
  const descriptors = Number(/^Max open files +(\d+)/m.exec(limits)?.[1] ?? Infinity);
  const allowed = Math.max(1, descriptors - otherDescriptors);
  if (allowed >= max) return max;
  onWarning(
    `the limit of ${descriptors} file descriptors allows ${allowed} connections, not the ${max} of --max-connections`,
  );
  return allowed;
}

/** The connections of a server, on all of its ports. */
export type Connections = ReturnType<typeof createConnections>;

interface ConnectionOptions {
  /** How many there may be on all ports together. */
  max: number;
  /** The age at which a client is asked to reconnect, in milliseconds; never if absent. */
  maxAgeMs?: number | undefined;
  /** How long calls have to end after that, in milliseconds. */
  graceMs: number;
  /** What to reply to a request of HTTP/1.1 that cannot be read, by the code of Node.js's error. */
  refusalOf(code: string): string;
  onEnd: OnEnd;
}

/**
 * Creates the set of connections. When it is full, a new one replaces the one that has been without
 * a call for longest, or one that carries watches alone: of the host that has most of these, the
 * youngest. A new connection gets some time for its first call before that. If all have calls, the new
 * one is closed.
 */
export function createConnections(options: ConnectionOptions) {
  const { max, maxAgeMs = Infinity, graceMs, refusalOf, onEnd } = options;
  const all = new Map<string, Connection>();
  const bySocket = new WeakMap<object, Connection>();
  const { paceRequest, paceSession } = createPaces();
  let closesAfterReply = false;
  let isRetiring = false;
  let distrustedAt = -Infinity;
  const ageTimer = setInterval(checkAges, ageCheckMs).unref();

  function add(socket: Socket): void {
    socket.on("error", ignore);
    // It has no address if its client was gone before it was accepted.
    if (socket.remoteAddress === undefined) {
      socket.destroy();
      return;
    }
    const lifeMs = maxAgeMs * (1 + ageSpread * (2 * Math.random() - 1));
    const connection = new Connection(socket, performance.now() + lifeMs, onEnd);
    if (all.size >= max && !makeRoom()) {
      connection.end("refused");
      return;
    }
    const { key } = connection;
    if (closesAfterReply) connection.closeAfterReply();
    all.set(key, connection);
    bySocket.set(socket, connection);
    socket.once("close", () => {
      connection.closeResponses();
      if (all.get(key) === connection) all.delete(key);
    });
  }

  /** Retires old connections, and closes them when their calls have had time to end. */
  function checkAges(): void {
    for (const connection of all.values()) {
      const overdueMs = performance.now() - connection.retiresAt;
      if (overdueMs >= 0) connection.retire();
      if (overdueMs >= graceMs && !connection.isBusy) connection.end("age");
      checkCertificate(connection);
    }
  }

  /**
   * Retires a connection before its client's certificate ends, and closes it then. One whose certificate
   * was no good from the start is closed, too, so that its client shows the next one.
   */
  function checkCertificate(connection: Connection): void {
    const { certificate } = connection.peer;
    if (certificate === undefined) return;
    const now = Date.now();
    if (connection.openedAt < distrustedAt) {
      certificate.trustedUntil = Math.min(certificate.trustedUntil, now + distrustMs);
      connection.retire();
    }
    // The clock may have been set back since.
    connection.openedAtDate = Math.min(connection.openedAtDate, now);
    const openedAt = connection.openedAtDate;
    const goodUntil = Math.min(certificate.validTo, certificate.trustedUntil);
    const endsAt = goodUntil > openedAt ? goodUntil : openedAt + certificateNoticeMs;
    const lifeMs = endsAt - openedAt;
    const noticeMs = lifeMs > certificateNoticeMs ? certificateNoticeMs : lifeMs / 2;
    if (now >= endsAt - noticeMs) connection.retire();
    if (now >= endsAt && !connection.isBusy) connection.end("certificate");
  }

  /** Ends a connection for a new one, unless all carry calls. */
  function makeRoom(): boolean {
    const connection = findIdlest(idleMs) ?? findWatcher() ?? findIdlest();
    if (connection === undefined) return false;
    // Its close event comes later, when many more may have come.
    all.delete(connection.key);
    connection.end(connection.onlyWatches ? "watch_replaced" : "idle_replaced");
    return true;
  }

  /** The connection that has been without a call for longest, and for at least this time. */
  function findIdlest(minMs = 0): Connection | undefined {
    let idlest: Connection | undefined;
    let since = performance.now() - minMs;
    for (const each of all.values()) {
      const { idleSince = Infinity } = each;
      if (idleSince > since) continue;
      idlest = each;
      since = idleSince;
    }
    return idlest;
  }

  /** The youngest connection with watches alone, of the host that has most of these. */
  function findWatcher(): Connection | undefined {
    const watchers = Array.from(all.values()).filter(({ onlyWatches }) => onlyWatches);
    return largestGroup(watchers, ({ host }) => host).at(-1);
  }

  /** Finds a connection by the socket of its TLS or session, which is another object. */
  function find(socket: Socket): Connection | undefined {
    const connection = all.get(keyOf(socket));
    if (connection) bySocket.set(socket, connection);
    return connection;
  }

  return {
    /** Follows the connections to a server. */
    follow(server: Server): void {
      // Before Node.js itself begins a session on it.
      server.prependListener("connection", add);
      server.on("secureConnection", (socket: Socket) => {
        const connection = find(socket);
        socket.on("error", ignore);
        if (connection) {
          connection.socket = socket;
          connection.peer = describePeer(socket);
        } else socket.destroy();
      });
      server.on("clientError", (error: NodeJS.ErrnoException, socket: Socket) => {
        const connection = bySocket.get(socket);
        if (connection === undefined) return void socket.destroy();
        // Anything can end a socket, also what has a number as its code.
        const code = String(error.code);
        if (code === "ERR_HTTP_REQUEST_TIMEOUT") connection.report("unfinished_request");
        else if (code.startsWith("HPE_")) connection.report("http1_error", code);
        connection.refuse(error, refusalOf(code));
      });
      server.on("tlsClientError", ({ code }: NodeJS.ErrnoException, socket: Socket) => {
        if (code === "ERR_TLS_HANDSHAKE_TIMEOUT") find(socket)?.report("no_handshake");
      });
      server.on("session", (session: ServerHttp2Session) => {
        const connection = find(session.socket);
        if (connection === undefined) return;
        connection.session = session;
        session.on("error", ({ code, message }: NodeJS.ErrnoException) => {
          // Others are of the socket, such as a reset by the client, or of a GOAWAY that it has sent.
          const isOurs = /^ERR_HTTP2_(?!SESSION_ERROR$)/.test(String(code));
          // nghttp2 takes the GOAWAY for an error that clients in Go send when they close.
          const isIdle = connection.idleSince !== undefined;
          if (isOurs) connection.report(isIdle ? "http2_idle_error" : "http2_error", message);
        });
        guardSession(session, connection);
        paceSession(session, connection);
        if (isRetiring) connection.retire();
      });
    },
    /** The connection of a socket, or of a session's; undefined if it was closed before that began. */
    of: (socket: Socket | undefined) => socket && bySocket.get(socket),
    /** Serves a request of HTTP/1.1, now or soon, unless its client has left by then. */
    paceRequest,
    /** From now on, every reply over HTTP/1.1 closes its connection. */
    closeAfterReplies() {
      closesAfterReply = true;
      for (const connection of all.values()) connection.closeAfterReply();
    },
    /** Retires those that are open, and those that finish their handshake later. */
    retire() {
      isRetiring = true;
      for (const connection of all.values()) connection.retire();
    },
    /** Has clients show their certificates again, since the CAs have changed. */
    distrustCertificates() {
      distrustedAt = performance.now();
    },
    /** Whether clients may still be reading replies over HTTP/2, without a pause. */
    get mayBeReading() {
      return Array.from(all.values()).some(({ mayBeReading }) => mayBeReading);
    },
    get isEmpty() {
      return all.size === 0;
    },
    destroy() {
      clearInterval(ageTimer);
      for (const connection of all.values()) connection.destroy();
    },
  };
}

/** The items of the key that most of them have; none if there are none. */
export function largestGroup<T>(items: Iterable<T>, keyOf: (item: T) => string): T[] {
  const groups = Array.from(Map.groupBy(items, keyOf).values());
  return groups.reduce((most, each) => (each.length > most.length ? each : most), []);
}
