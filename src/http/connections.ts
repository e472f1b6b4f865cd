import { existsSync, readFileSync } from "node:fs";
import type { ServerResponse } from "node:http";
import { constants, type ServerHttp2Session, type ServerHttp2Stream } from "node:http2";
import type { Server, Socket } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { ignore } from "./reply.ts";

/** How long a session of HTTP/2 may take to begin, and its socket to close after it, in milliseconds. */
const sessionTimeoutMs = 10_000;

/** The slowest that a client may read after {@link readTimeoutMs half a minute}, in bytes a millisecond. */
const slowestRead = 16;

/** The most that Linux buffers of a reply. It reports room, which is progress, once a third is free. */
const maxSystemBuffer = 4 * 1024 * 1024;

/** How often to ask over HTTP/2 whether the client is still there, and its timeout, in milliseconds. */
const pingIntervalMs = 60_000;
const pingTimeoutMs = 30_000;

/** After how long without calls a connection of HTTP/2 is closed, in milliseconds. */
const idleTimeoutMs = 5 * 60_000;

/** The most streams that a connection of HTTP/2 may have at once; clients presume no fewer. */
export const maxStreams = 100;

/** How many new ones are served at once in a turn of the event loop. */
const maxServedAtOnce = 32;

/** The most new ones in a turn: as many as may be open, after those that were served, and resets. */
const maxNewStreams = 192;

/** The most requests that may be unanswered on a connection of HTTP/1.1 (pipelining). */
const maxUnanswered = 16;

/** The fraction by which the ages of connections differ, so that they do not all end at once. */
const ageSpread = 0.1;

/** The longest that a timer of Node.js can wait, in milliseconds: some 24 days. */
export const maxTimerMs = 2 ** 31 - 1;

/**
 * How long a client may take to read what is buffered for it, in milliseconds.
 *
 * @param sentBytes how much the system got to send to it
 * @param unsentBytes how much waits in the process
 */
export function readTimeoutMs(sentBytes: number, unsentBytes = 0): number {
  return 30_000 + (Math.min(sentBytes, maxSystemBuffer) + unsentBytes) / slowestRead;
}

/** A client's connection to one of the ports. */
export class Connection {
  #socket: Socket;
  #session: ServerHttp2Session | undefined;
  readonly #openedAt = performance.now();
  #repliedAt = Number.NEGATIVE_INFINITY;
  #readBy = Number.NEGATIVE_INFINITY;
  #calls = 0;
  #watches = 0;
  #newStreams = 0;
  readonly #responses = new Set<ServerResponse>();
  #closesAfterReply: boolean;
  #ageTimer: NodeJS.Timeout | undefined;
  #sessionTimer: NodeJS.Timeout | undefined;
  #pingTimer: NodeJS.Timeout | undefined;

  constructor(socket: Socket, closesAfterReply: boolean) {
    this.#socket = socket;
    this.#closesAfterReply = closesAfterReply;
  }

  /** Since when it has carried no call, by performance.now(); undefined while it carries one. */
  get idleSince(): number | undefined {
    if (this.#calls > 0 || this.#watches > 0) return undefined;
    return Math.max(this.#openedAt, this.#repliedAt);
  }

  /**
   * Whether its client may still be reading a reply over HTTP/2. What it sends meanwhile must be read,
   * or the system resets the connection, and drops what it has not sent yet.
   */
  get isReading(): boolean {
    return this.#session !== undefined && performance.now() < this.#readBy;
  }

  /**
   * Counts a call, or a watch, which has no deadline, until the returned function is called with how
   * many bytes its client may still have to read.
   */
  use(isWatch = false): (sentBytes: number) => void {
    if (isWatch) this.#watches += 1;
    else this.#calls += 1;
    return (sentBytes) => {
      if (isWatch) this.#watches -= 1;
      else this.#calls -= 1;
      this.#repliedAt = performance.now();
      this.#readBy = Math.max(this.#readBy, this.#repliedAt + readTimeoutMs(sentBytes));
    };
  }

  /** From now on, closes the socket of TLS: Node.js can crash if the one below it is closed first. */
  followTls(socket: Socket): void {
    this.#socket = socket;
    socket.on("error", ignore);
  }

  /** Follows its session, if it speaks HTTP/2. */
  followSession(session: ServerHttp2Session): void {
    this.#session = session;
    let isLate = true;
    session.once("remoteSettings", () => {
      isLate = false;
    });
    // Node.js waits for its first settings, and for the last of its bytes to be read, without a limit.
    this.#sessionTimer = setInterval(() => {
      if (isLate) this.destroy();
      isLate = session.destroyed && !this.isReading;
    }, sessionTimeoutMs).unref();
    this.#pingTimer = setInterval(() => this.#checkClient(), pingIntervalMs).unref();
  }

  /**
   * Serves a new stream: at once or, after many in one turn of the event loop, when all was read, if
   * its client has not reset it by then. Ends a session with too many in a turn, since the memory of
   * streams that were reset is free only after it; Node.js limits resets only after all that it read.
   */
  admit(stream: ServerHttp2Stream, serve: () => void): void {
    if (this.#newStreams === 0) {
      setImmediate(() => {
        this.#newStreams = 0;
      });
    }
    this.#newStreams += 1;
    if (this.#newStreams > maxNewStreams) {
      this.#session?.destroy(undefined, constants.NGHTTP2_ENHANCE_YOUR_CALM);
    } else if (this.#newStreams <= maxServedAtOnce) {
      serve();
    } else {
      setImmediate(() => {
        if (!stream.closed) serve();
      });
    }
  }

  /**
   * Follows the response to a request of HTTP/1.1.
   *
   * @returns false if the client was told that there will be none (RFC 9112, 9.6)
   */
  followResponse(response: ServerResponse): boolean {
    this.#responses.add(response);
    response.once("close", () => this.#responses.delete(response));
    if (this.#responses.size > maxUnanswered) this.destroy();
    if (!this.#closesAfterReply) return true;
    const responses = [...this.#responses];
    const wasLast = (each: ServerResponse) => each.getHeader("connection") === "close";
    if (responses.some((each) => each.headersSent && wasLast(each))) return false;
    const previous = responses.at(-2);
    if (previous && !previous.headersSent) previous.removeHeader("connection");
    response.setHeader("connection", "close");
    return true;
  }

  /** Over HTTP/1.1, has the next reply close it. */
  closeAfterReply(): void {
    this.#closesAfterReply = true;
    const response = [...this.#responses].at(-1);
    if (response && !response.headersSent) response.setHeader("connection", "close");
  }

  /**
   * Asks the client to send its next requests on another connection: over HTTP/1.1 with the next
   * reply, over HTTP/2 at once, with which request was the last to be served. Calls go on to their end.
   */
  retire(): void {
    this.closeAfterReply();
    this.#session?.close();
  }

  /** Retires it at an age in milliseconds, and closes it when its calls have had `graceMs` to end. */
  limitAge(ageMs: number, graceMs: number): void {
    const closeIfIdle = () => {
      if (this.#calls === 0 && !this.isReading) this.destroy();
    };
    const retire = () => {
      this.retire();
      this.#ageTimer = setInterval(closeIfIdle, graceMs).unref();
    };
    this.#ageTimer = setTimeout(retire, Math.min(ageMs, maxTimerMs)).unref();
  }

  destroy(): void {
    this.#socket.destroy();
  }

  /** Stops following it, once it has closed. */
  unfollow(): void {
    clearTimeout(this.#ageTimer);
    clearInterval(this.#sessionTimer);
    clearInterval(this.#pingTimer);
    // Node.js closes the responses of a connection that ends, but not behind a CONNECT.
    for (const response of this.#responses) response.emit("close");
  }

  async #checkClient(): Promise<void> {
    const { idleSince = performance.now() } = this;
    if (performance.now() - idleSince >= idleTimeoutMs) this.retire();
    // Calls have limits of their own, and a ping waits behind what is sent of them.
    else if (!(await this.#ping(pingTimeoutMs)) && this.#calls === 0 && !this.isReading) {
      this.destroy();
    }
  }

  /** Whether the client answers in time, or the session has ended. */
  async #ping(timeoutMs: number): Promise<boolean> {
    const session = this.#session;
    if (session === undefined || session.destroyed) return true;
    const answered = new Promise<boolean>((resolve) => session.ping(() => resolve(true)));
    return Promise.race([answered, delay(timeoutMs, false, { ref: false })]);
  }
}

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

/** The connections of a server. */
export type Connections = ReturnType<typeof createConnections>;

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
 * Creates the set of the connections of a server, on all of its ports. When it is full, a new one
 * replaces the one that has been without a call for longest; if all have one, the new one is closed.
 */
export function createConnections({ max, maxAgeMs, graceMs }: ConnectionLimits) {
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
    /** Follows the connections to a server. */
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
    /** The connection of a request's socket; undefined once it was closed to replace it. */
    of(socket: Socket): Connection | undefined {
      return bySocket.get(socket);
    },
    /** Serves a new stream of HTTP/2, unless its client opens and resets too many. */
    admit(stream: ServerHttp2Stream, serve: () => void): void {
      const socket = stream.session?.socket;
      if (socket) bySocket.get(socket)?.admit(stream, serve);
    },
    /** From now on, every reply over HTTP/1.1 closes its connection. */
    closeAfterReplies(): void {
      closesAfterReply = true;
      for (const connection of all.values()) connection.closeAfterReply();
    },
    /** Retires those that are open, and those that finish their handshake later. */
    retire(): void {
      isRetiring = true;
      for (const connection of all.values()) connection.retire();
    },
    /** Whether clients may still be reading replies over HTTP/2. */
    get areReading(): boolean {
      return Array.from(all.values()).some(({ isReading }) => isReading);
    },
    /** Whether none is open. */
    get isEmpty(): boolean {
      return all.size === 0;
    },
    /** Closes what is still open at once. */
    destroy(): void {
      for (const connection of all.values()) connection.destroy();
    },
  };
}

/** The same for a socket and the one that encrypts it. */
function keyOf({ remoteAddress, remotePort, localAddress, localPort }: Socket): string {
  return `${remoteAddress} ${remotePort} ${localAddress} ${localPort}`;
}
