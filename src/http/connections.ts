import { existsSync, readFileSync } from "node:fs";
import type { ServerHttp2Session, ServerHttp2Stream } from "node:http2";
import type { Server, Socket } from "node:net";
import { Connection } from "./connection.ts";
import { ignore } from "./reply.ts";

/** The fraction by which the ages of connections differ, so that they do not all end at once. */
const ageSpread = 0.1;

/** Where Linux tells the limits of a process. */
const limitsFile = "/proc/self/limits";

/** How many file descriptors the process may need besides those of connections. */
const otherDescriptors = 50;

/**
 * As many connections as the file descriptors of this process allow, if the system tells: without a
 * descriptor for a new one it could not even be accepted to replace another.
 *
 * @param max the most that are wanted
 * @param onWarning called if they are fewer
 */
export function withinDescriptors(max: number, onWarning: (message: string) => void): number {
  const limits = existsSync(limitsFile) ? readFileSync(limitsFile, "utf8") : "";
  const descriptors = Number(/^Max open files +(\d+)/m.exec(limits)?.[1] ?? Infinity);
  if (descriptors >= max + otherDescriptors) return max;
  const allowed = Math.max(1, descriptors - otherDescriptors);
  onWarning(
    `the limit of ${descriptors} file descriptors allows ${allowed} connections, not the ${max} of --max-connections`,
  );
  return allowed;
}

/** The connections of a server, on all of its ports. */
export interface Connections {
  /** Follows the connections to a server. */
  follow(server: Server): void;
  /** The connection of a request's socket; undefined once it was closed to replace it. */
  of(socket: Socket): Connection | undefined;
  /** Serves a new stream of HTTP/2, unless its client opens and resets too many. */
  paceStream(stream: ServerHttp2Stream, serve: () => void): void;
  /** From now on, every reply over HTTP/1.1 closes its connection. */
  closeAfterReplies(): void;
  /** Retires those that are open, and those that finish their handshake later. */
  retire(): void;
  /** Whether clients may still be reading replies over HTTP/2. */
  readonly mayHaveUnreadReplies: boolean;
  /** Whether none is open. */
  readonly isEmpty: boolean;
  /** Closes what is still open at once. */
  destroy(): void;
}

/** What bounds {@link createConnections connections}. */
interface ConnectionLimits {
  /** How many there may be on all ports together. */
  max: number;
  /** The age at which a client is asked to reconnect, in milliseconds; never if absent. */
  maxAgeMs?: number | undefined;
  /** How long calls have to end after that, in milliseconds. */
  graceMs: number;
}

/**
 * Creates the set of connections. When it is full, a new one
 * replaces the one that has been without a call for longest; if all have one, the new one is closed.
 */
export function createConnections({ max, maxAgeMs, graceMs }: ConnectionLimits): Connections {
  const all = new Map<string, Connection>();
  const bySocket = new WeakMap<object, Connection>();
  let closesAfterReply = false;
  let isRetiring = false;

  function add(socket: Socket): void {
    socket.on("error", ignore);
    if (all.size >= max && !closeIdlest()) {
      socket.destroy();
      return;
    }
    const key = keyOf(socket);
    const connection = new Connection(socket, closesAfterReply);
    all.set(key, connection);
    bySocket.set(socket, connection);
    if (maxAgeMs !== undefined) {
      connection.limitAge(maxAgeMs * (1 + ageSpread * (2 * Math.random() - 1)), graceMs);
    }
    socket.once("close", () => {
      connection.unfollow();
      if (all.get(key) === connection) all.delete(key);
    });
  }

  function closeIdlest(): boolean {
    let idlest: [string, Connection] | undefined;
    for (const each of all) {
      const since = each[1].idleSince;
      if (since !== undefined && since < (idlest?.[1].idleSince ?? Infinity)) idlest = each;
    }
    if (idlest === undefined) return false;
    idlest[1].destroy();
    // Its close event comes later, when many more may have come.
    return all.delete(idlest[0]);
  }

  /** The socket of TLS, or of a session, is another object than that of the connection. */
  function find(socket: Socket): Connection | undefined {
    const connection = all.get(keyOf(socket));
    if (connection) bySocket.set(socket, connection);
    return connection;
  }

  return {
    follow(server: Server): void {
      // Before Node.js itself begins a session on it.
      server.prependListener("connection", add);
      server.on("secureConnection", (socket: Socket) => {
        const connection = find(socket);
        if (connection) connection.followTls(socket);
        else socket.destroy();
      });
      server.on("session", (session: ServerHttp2Session) => {
        const connection = find(session.socket);
        connection?.followSession(session);
        if (isRetiring) connection?.retire();
      });
    },
    of(socket: Socket): Connection | undefined {
      return bySocket.get(socket);
    },
    paceStream(stream: ServerHttp2Stream, serve: () => void): void {
      const socket = stream.session?.socket;
      if (socket) bySocket.get(socket)?.paceStream(stream, serve);
    },
    closeAfterReplies(): void {
      closesAfterReply = true;
      for (const connection of all.values()) connection.closeAfterReply();
    },
    retire(): void {
      isRetiring = true;
      for (const connection of all.values()) connection.retire();
    },
    get mayHaveUnreadReplies(): boolean {
      return Array.from(all.values()).some(({ mayHaveUnreadReply }) => mayHaveUnreadReply);
    },
    get isEmpty(): boolean {
      return all.size === 0;
    },
    destroy(): void {
      for (const connection of all.values()) connection.destroy();
    },
  };
}

/** The same for a socket and the one that encrypts it. */
function keyOf({ remoteAddress, remotePort, localAddress, localPort }: Socket): string {
  return `${remoteAddress} ${remotePort} ${localAddress} ${localPort}`;
}
