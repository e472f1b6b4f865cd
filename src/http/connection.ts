import type { ServerResponse } from "node:http";
import type { ServerHttp2Session, ServerHttp2Stream } from "node:http2";
import type { Socket } from "node:net";
import { ignore } from "./reply.ts";
import { SessionGuard } from "./session-guard.ts";

/** The slowest that a client may read after {@link readTimeoutMs half a minute}, in bytes a millisecond. */
const slowestRead = 16;

/** The most that Linux buffers of a reply. It reports room, which is progress, once a third is free. */
const maxSystemBuffer = 4 * 1024 * 1024;

/** The most requests that may be unanswered on a connection of HTTP/1.1 (pipelining). */
const maxUnanswered = 16;

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
  #guard: SessionGuard | undefined;
  readonly #openedAt = performance.now();
  #repliedAt = Number.NEGATIVE_INFINITY;
  #readBy = Number.NEGATIVE_INFINITY;
  #calls = 0;
  #watches = 0;
  readonly #responses = new Set<ServerResponse>();
  #closesAfterReply: boolean;
  #hasLastReply = false;
  #ageTimer: NodeJS.Timeout | undefined;

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
  get mayHaveUnreadReply(): boolean {
    return this.#guard !== undefined && performance.now() < this.#readBy;
  }

  /** Whether a call or a reply would be cut if it were closed. */
  get isBusy(): boolean {
    return this.#calls > 0 || this.mayHaveUnreadReply;
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
    this.#guard = new SessionGuard(session, this);
  }

  /** Serves a new stream of its session: see {@link SessionGuard.paceStream}. */
  paceStream(stream: ServerHttp2Stream, serve: () => void): void {
    this.#guard?.paceStream(stream, serve);
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
    if (this.#hasLastReply) return false;
    if (this.#closesAfterReply) this.#makeLast(response);
    return true;
  }

  /** Over HTTP/1.1, has the newest reply close it that can still say so, or else the next one. */
  closeAfterReply(): void {
    this.#closesAfterReply = true;
    const newest = [...this.#responses].at(-1);
    if (newest && !newest.headersSent) this.#makeLast(newest);
  }

  /**
   * Asks the client to send its next requests on another connection: over HTTP/1.1 with the next
   * reply, over HTTP/2 at once, with which request was the last to be served. Calls go on to their end.
   */
  retire(): void {
    this.closeAfterReply();
    this.#guard?.close();
  }

  /** Retires it at an age in milliseconds, and closes it when its calls have had `graceMs` to end. */
  limitAge(ageMs: number, graceMs: number): void {
    const closeIfIdle = () => {
      if (!this.isBusy) this.destroy();
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
    this.#guard?.stop();
    // Node.js closes the responses of a connection that ends, but not behind a CONNECT.
    for (const response of this.#responses) response.emit("close");
  }

  #makeLast(response: ServerResponse): void {
    this.#hasLastReply = true;
    response.setHeader("connection", "close");
  }
}
