import type { ServerHttp2Session } from "node:http2";
import type { Server, Socket } from "node:net";
import { limits } from "../limits.ts";
import { Connection, keyOf, type OnEnd } from "./connection.ts";
import { createPace, guardSession } from "./http2-session.ts";
import { describePeer } from "./peer.ts";
import { ignore } from "./reply.ts";
import { createStrangers } from "./strangers.ts";

/** Random spread of connection ages, so that connections do not all end at once. */
const ageSpread = 0.1;

/** How often to check ages, in milliseconds. */
const ageCheckMs = 500;

/**
 * How long before its client's certificate expires a connection is retired, in milliseconds, so that one
 * with a renewed certificate can take over. At most half of the time that was left when it was opened.
 */
const certificateNoticeMs = 60_000;

/** How long connections whose certificates were checked against earlier CAs stay, in milliseconds. */
const distrustMs = 10_000;

/** How long a shutdown waits for clients that may be reading their last replies, in milliseconds. */
const arrivalMs = 5_000;

/** All connections of a server. */
export type Connections = ReturnType<typeof createConnections>;

interface ConnectionOptions {
  /** The most connections, on all ports together. */
  max: number;
  /** The age at which a client is asked to reconnect, in milliseconds; never if absent. */
  maxAgeMs?: number | undefined;
  /** How long calls may then take to end, in milliseconds. */
  graceMs: number;
  onEnd: OnEnd;
}

/**
 * Creates the set of connections. When it is full, a new connection replaces the one idle for
 * longest. If all carry admitted calls, the new one is closed.
 */
export function createConnections(options: ConnectionOptions) {
  const { max, maxAgeMs = Infinity, graceMs, onEnd } = options;
  const all = new Map<string, Connection>();
  const bySocket = new WeakMap<object, Connection>();
  const strangers = createStrangers();
  let closesAfterReply = false;
  let isRetiring = false;
  const ageTimer = setInterval(checkAges, ageCheckMs).unref();

  function add(socket: Socket): void {
    socket.on("error", ignore);
    // A client that left before it was accepted has no address.
    if (socket.remoteAddress === undefined) {
      socket.destroy();
      return;
    }
    const lifeMs = maxAgeMs * (1 + ageSpread * (2 * Math.random() - 1));
    const connection = new Connection(socket, performance.now() + lifeMs, strangers, onEnd);
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

  /** Retires old connections and idle ones of HTTP/2; closes old ones after the grace period for their calls. */
  function checkAges(): void {
    for (const connection of all.values()) {
      const overdueMs = performance.now() - connection.retiresAt;
      // No timer of the session's own: Node.js keeps one, and all of the session, after the session's end.
      const { session, idleSince = Infinity } = connection;
      const isIdle = session !== undefined && performance.now() - idleSince >= limits.idleMs;
      if (overdueMs >= 0 || isIdle) connection.retire();
      // The system resets a connection that is closed while its client reads, and drops the rest.
      const isRead =
        connection.idleSince !== undefined && !connection.hasRepliedWithin(limits.unreadMs);
      if (overdueMs >= graceMs && isRead) connection.end("age");
    }
  }

  /**
   * Has a connection end before its client's certificate does. One whose certificate is not valid is refused call by
   * call, and asked for another one later.
   */
  function endWithCertificate(connection: Connection): void {
    const { certificate } = connection.peer;
    if (certificate === undefined) return;
    const leftMs = certificate.validTo - Date.now();
    const isValid = certificate.isTrusted && leftMs > 0;
    const noticeMs = Math.min(certificateNoticeMs, leftMs / 2);
    const endsInMs = isValid ? leftMs - noticeMs : certificateNoticeMs;
    connection.retiresAt = Math.min(connection.retiresAt, performance.now() + endsInMs);
  }

  /** Ends a connection for a new one, unless all carry calls. */
  function makeRoom(): boolean {
    const connection = findIdlest();
    if (connection === undefined) return false;
    // Its close event comes later; many connections may arrive before that.
    all.delete(connection.key);
    connection.end("idle_replaced");
    return true;
  }

  function findIdlest(): Connection | undefined {
    let idlest: Connection | undefined;
    let since = Infinity;
    for (const each of all.values()) {
      const { idleSince = Infinity } = each;
      if (idleSince >= since) continue;
      idlest = each;
      since = idleSince;
    }
    return idlest;
  }

  /** Finds a connection by its TLS or session socket, which is a different object. */
  function find(socket: Socket): Connection | undefined {
    const connection = all.get(keyOf(socket));
    if (connection) bySocket.set(socket, connection);
    return connection;
  }

  return {
    /** Adds the connections of a server. */
    follow(server: Server): void {
      // Runs before Node.js starts a session on the connection.
      server.prependListener("connection", add);
      server.on("secureConnection", (socket: Socket) => {
        const connection = find(socket);
        socket.on("error", ignore);
        if (connection) {
          connection.socket = socket;
          connection.peer = describePeer(socket);
          endWithCertificate(connection);
        } else socket.destroy();
      });
      server.on("clientError", (error: NodeJS.ErrnoException, socket: Socket) => {
        // Errors of any origin arrive here, even ones with a numeric code.
        const code = String(error.code);
        const connection = bySocket.get(socket);
        if (connection === undefined) {
          // Of a TLS handshake. A destroyed socket has no address to find its connection by.
          if (code === "ERR_TLS_HANDSHAKE_TIMEOUT") find(socket)?.report("no_handshake");
          socket.destroy();
          return;
        }
        if (code === "ERR_HTTP_REQUEST_TIMEOUT") connection.report("unfinished_request");
        else if (code.startsWith("HPE_")) connection.report("http1_error", code);
        connection.refuse(error);
      });
      server.on("session", (session: ServerHttp2Session) => {
        const connection = find(session.socket);
        if (connection === undefined) return;
        connection.session = session;
        session.on("error", ({ code, message }: NodeJS.ErrnoException) => {
          // Other errors come from the socket (such as a reset by the client) or a GOAWAY of the client.
          const isOurs = /^ERR_HTTP2_(?!SESSION_ERROR$)/.test(String(code));
          // nghttp2 reports the GOAWAY that Go clients send on closing as an error.
          const isIdle = connection.idleSince !== undefined;
          if (isOurs) connection.report(isIdle ? "http2_idle_error" : "http2_error", message);
        });
        guardSession(session, connection);
        if (isRetiring) connection.retire();
      });
    },
    /** The connection of a socket or a session's socket; undefined if it has already been closed. */
    of: (socket: Socket | undefined) => socket && bySocket.get(socket),
    /** Serves a request, now or soon, unless it is over by then. */
    pace: createPace(),
    /** From now on, each HTTP/1.1 reply closes its connection. */
    closeAfterReplies() {
      closesAfterReply = true;
      for (const connection of all.values()) connection.closeAfterReply();
    },
    /** Retires open connections, and those that finish their handshake later. */
    retire() {
      isRetiring = true;
      for (const connection of all.values()) connection.retire();
    },
    /** Has clients present their certificates again, since the CAs have changed. */
    distrustCertificates() {
      const openedBefore = [...all.values()];
      for (const each of openedBefore) if (each.peer.certificate) each.retire();
      const end = () => {
        for (const each of openedBefore) if (each.peer.certificate) each.end("certificate");
      };
      // Handshakes that have begun with the earlier CAs are over by then.
      setTimeout(end, distrustMs).unref();
    },
    /** Whether any client may still be reading an HTTP/2 reply, which the system sends. */
    get mayBeReading() {
      return Array.from(all.values()).some(
        (each) => each.session !== undefined && each.hasRepliedWithin(arrivalMs),
      );
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
