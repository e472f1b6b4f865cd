import type { Socket } from "node:net";
import { limits } from "../limits.ts";
import { Connection, keyOf, type OnEnd } from "./connection.ts";
import { ignore } from "./reply.ts";
import { createStrangers } from "./unadmitted-requests.ts";

/** Random spread of connection ages, so that connections do not all end at once. */
const ageSpread = 0.1;

/** How often to check ages and deadlines, in milliseconds. */
const checkMs = 500;

/** How long connections whose certificates were checked against earlier CAs stay, in milliseconds. */
const distrustMs = 10_000;

/** How long a shutdown waits for clients that may be reading their last replies, in milliseconds. */
const arrivalMs = 5_000;

export type Connections = ReturnType<typeof createConnections>;

interface ConnectionOptions {
  /** The most connections, on all ports together. */
  max: number;
  /** The age at which a client is asked to reconnect, in milliseconds; never if absent. */
  maxAgeMs?: number | undefined;
  onEnd: OnEnd;
}

/**
 * Creates the set of connections. When it is full, a new connection replaces the one idle for
 * longest. If all carry admitted calls or check credentials, the new one is closed.
 */
export function createConnections({ max, maxAgeMs = Infinity, onEnd }: ConnectionOptions) {
  const all = new Map<string, Connection>();
  const strangers = createStrangers();
  let closesAfterReply = false;
  const timer = setInterval(check, checkMs).unref();

  /** Retires connections that are old, and idle ones of HTTP/2; ends those whose clients are late. */
  function check(): void {
    const now = performance.now();
    for (const connection of all.values()) {
      const { session, idleSince = now, retiresAt, deadline } = connection;
      // No timer of the session's own: Node.js keeps one, and all of the session, after the session's end.
      const idleMs = session === undefined ? 0 : now - idleSince;
      if (now >= retiresAt || idleMs >= limits.idleMs) connection.retire();
      if (deadline && now >= deadline.at) connection.end(deadline.reason);
      // Node.js does not always close a session whose client is gone.
      else if (idleMs >= limits.idleMs + limits.unreadMs) connection.end("not_closed");
    }
  }

  /** Ends the connection idle for longest, for a new one, unless all carry calls. */
  function makeRoom(): boolean {
    let idlest: Connection | undefined;
    for (const each of all.values()) {
      const { idleSince = Infinity } = each;
      if (idleSince < (idlest?.idleSince ?? Infinity)) idlest = each;
    }
    if (idlest === undefined) return false;
    // Its close event comes later; many connections may arrive before that.
    all.delete(idlest.key);
    idlest.end("idle_replaced");
    return true;
  }

  return {
    /**
     * Adds a connection that was just accepted.
     *
     * @returns undefined if it has been closed
     */
    add(socket: Socket): Connection | undefined {
      socket.on("error", ignore);
      // A client that left before it was accepted has no address.
      if (socket.remoteAddress === undefined) {
        socket.destroy();
        return undefined;
      }
      const lifeMs = maxAgeMs * (1 + ageSpread * (2 * Math.random() - 1));
      const connection = new Connection(socket, performance.now() + lifeMs, strangers, onEnd);
      if (all.size >= max && !makeRoom()) {
        connection.end("refused");
        return undefined;
      }
      if (closesAfterReply) connection.closeAfterReply();
      all.set(connection.key, connection);
      socket.once("close", () => {
        connection.closeResponses();
        if (all.get(connection.key) === connection) all.delete(connection.key);
      });
      return connection;
    },
    /** Finds the connection of a TLS socket, which is another object than what was accepted. */
    find: (socket: Socket): Connection | undefined => all.get(keyOf(socket)),
    /** From now on, each HTTP/1.1 reply closes its connection. */
    closeAfterReplies() {
      closesAfterReply = true;
      for (const connection of all.values()) connection.closeAfterReply();
    },
    /** Retires open connections, soon also those whose session begins later. */
    retire() {
      for (const connection of all.values()) connection.retiresAt = 0;
      check();
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
    /** Whether any client may still be reading the reply to an admitted call over HTTP/2, which the system sends. */
    get mayBeReading() {
      const now = performance.now();
      return Array.from(all.values()).some(
        ({ session, isStranger, idleSince = now }) =>
          session !== undefined && !isStranger && now - idleSince < arrivalMs,
      );
    },
    get isEmpty() {
      return all.size === 0;
    },
    destroy() {
      clearInterval(timer);
      for (const connection of all.values()) connection.socket.destroy();
    },
  };
}
