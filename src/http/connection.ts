import type { ServerResponse } from "node:http";
import { constants, type ServerHttp2Session, type ServerHttp2Stream } from "node:http2";
import type { Socket } from "node:net";
import { describePeer, type Peer } from "./peer.ts";

/** How long a client may pause before it reads, in milliseconds. */
const pauseMs = 30_000;

/** Minimum read rate after that, in bytes a millisecond. */
const slowestRead = 16;

/** The most that Linux buffers of a reply; it shows progress only once a third of that is read. */
const maxSystemBuffer = 4 * 1024 * 1024;

/** How long a reply may be on its way to a client that reads as fast as it comes, in milliseconds. */
const arrivalMs = 1_000;

/** How long a client has to read why its request could not be read, in milliseconds. */
const refusalMs = 5_000;

/** The most requests that may be unanswered on a connection of HTTP/1.1 (pipelining). */
const maxUnanswered = 16;

/** How long a client may take to read bytes that the system buffers for it, in milliseconds. */
function readTimeoutMs(sentBytes: number, graceMs = pauseMs): number {
  return graceMs + Math.min(sentBytes, maxSystemBuffer) / slowestRead;
}

/** Why a connection ends before its client ends it, as the metric names it. */
export type EndReason =
  | "idle_replaced"
  | "watch_replaced"
  | "refused"
  | "no_handshake"
  | "no_settings"
  | "no_ping_reply"
  | "not_closed"
  | "unread_reply"
  | "unfinished_request"
  | "pipelining"
  | "too_many_streams"
  | "http1_error"
  | "http2_error"
  | "http2_idle_error"
  | "age"
  | "certificate";

/** The same for a socket and the one that encrypts it. */
export function keyOf({ remoteAddress, remotePort, localAddress, localPort }: Socket): string {
  return `${remoteAddress} ${remotePort} ${localAddress} ${localPort}`;
}

/** Called with why a connection ends, and the address of its client. */
export type OnEnd = (reason: EndReason, peer: string, cause?: string) => void;

/** A client's connection to one of the ports. */
export class Connection {
  /** The TLS socket if there is one, else the TCP socket: Node.js can crash if the one below is closed first. */
  socket: Socket;
  readonly key: string;
  readonly host: string;
  /** Its session, if it speaks HTTP/2. */
  session: ServerHttp2Session | undefined;
  /** Serves a new stream of that, now or soon, unless it was reset by then. */
  pace: ((stream: ServerHttp2Stream, serve: () => void) => void) | undefined;
  /** Its client; its certificate is known once TLS is there. */
  peer: Peer;
  readonly retiresAt: number;
  /** When it was opened, by performance.now(), and in milliseconds of Unix time by the clock of today. */
  readonly openedAt = performance.now();
  openedAtDate = Date.now();
  readonly #onEnd: OnEnd;
  #isReported = false;
  #repliedAt = Number.NEGATIVE_INFINITY;
  #readBy = Number.NEGATIVE_INFINITY;
  #arrivedBy = Number.NEGATIVE_INFINITY;
  #calls = 0;
  #watches = 0;
  readonly #responses = new Set<ServerResponse>();
  #isEnding = false;
  #closesAfterReply = false;
  #hasLastReply = false;

  /**
   * @param retiresAt when it is too old, by performance.now()
   * @param onEnd called, once, if it ends before its client ends it
   */
  constructor(socket: Socket, retiresAt: number, onEnd: OnEnd) {
    this.socket = socket;
    this.key = keyOf(socket);
    this.host = socket.remoteAddress ?? "";
    this.peer = describePeer(socket);
    this.retiresAt = retiresAt;
    this.#onEnd = onEnd;
  }

  /** Reports, once, why it ends before its client ends it. */
  report(reason: EndReason, cause?: string): void {
    if (this.#isReported) return;
    this.#isReported = true;
    this.#onEnd(reason, this.peer.address, cause);
  }

  /** Gives its client time to read what it was sent of a reply, before others that wait behind it. */
  awaitReader(sentBytes: number): void {
    this.#readBy = Math.max(this.#readBy, performance.now() + readTimeoutMs(sentBytes));
  }

  /**
   * Ends it if a reply is not read in time. Called before the reply, or its next part, is written.
   *
   * @param sentBytes how much of the reply the system may have got by then
   * @param onLate called before it ends
   * @returns what stops that
   */
  endUnlessRead(
    reply: { readonly writableLength: number },
    sentBytes: number,
    onLate?: () => void,
  ): () => void {
    const end = () => {
      onLate?.();
      this.end("unread_reply");
    };
    let timer = setTimeout(() => {
      // Over HTTP/2, what was sent of other replies is ahead of what waits in the process.
      const othersMs = Math.max(0, this.#readBy - performance.now());
      timer = setTimeout(end, othersMs + reply.writableLength / slowestRead);
    }, readTimeoutMs(sentBytes));
    return () => clearTimeout(timer);
  }

  /** Since when it has carried no call, by performance.now(); undefined while it carries one. */
  get idleSince(): number | undefined {
    if (this.#calls > 0 || this.#watches > 0) return undefined;
    return Math.max(this.openedAt, this.#repliedAt);
  }

  /** Whether it carries nothing but watches. */
  get onlyWatches(): boolean {
    return this.#watches > 0 && !this.isBusy;
  }

  /**
   * Whether its client may still be reading a reply over HTTP/2. What it sends meanwhile must be read,
   * or the system resets the connection, and drops what it has not sent yet.
   */
  get mayHaveUnreadReply(): boolean {
    return this.session !== undefined && performance.now() < this.#readBy;
  }

  /** The same without a pause: a client that is gone holds up nothing for longer than its replies take. */
  get mayBeReading(): boolean {
    return this.session !== undefined && performance.now() < this.#arrivedBy;
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
    // Counting takes a part of a microsecond, and only of HTTP/2 it matters.
    const written = () => (this.session ? this.socket.bytesWritten : 0);
    const writtenBefore = written();
    return (sentBytes) => {
      if (isWatch) this.#watches -= 1;
      else this.#calls -= 1;
      this.#repliedAt = performance.now();
      // What a watch says is small, and nobody waits for it.
      if (isWatch) return;
      this.awaitReader(sentBytes);
      const arrivesInMs = readTimeoutMs(written() - writtenBefore, arrivalMs);
      this.#arrivedBy = Math.max(this.#arrivedBy, this.#repliedAt + arrivesInMs);
    };
  }

  /**
   * Follows the response to a request of HTTP/1.1.
   *
   * @returns false if the client was told that there will be none (RFC 9112, 9.6)
   */
  followResponse(response: ServerResponse): boolean {
    this.#responses.add(response);
    response.once("close", () => this.#responses.delete(response));
    if (this.#responses.size > maxUnanswered) this.end("pipelining");
    if (this.#hasLastReply) return false;
    if (this.#closesAfterReply) this.#makeLast(response);
    return true;
  }

  /**
   * Ends it, as its next request of HTTP/1.1 cannot be read. Its client gets the reply unless it is owed
   * another one, and has time to read it: closed at once, it would be reset by bytes that still come.
   */
  refuse(error: Error, reply: string): void {
    const { socket } = this;
    // Whatever comes behind what could not be read is an error, too.
    if (socket.writableEnded) return;
    const responses = [...this.#responses];
    if (socket.writable && !responses.some(({ headersSent }) => headersSent)) socket.end(reply);
    if (responses.length > 0) socket.destroy(error);
    else setTimeout(() => socket.destroy(), refusalMs).unref();
  }

  /** Over HTTP/1.1, has a reply close it: the newest, if that can still say so, or else the next one. */
  closeAfterReply(): void {
    this.#closesAfterReply = true;
    const newest = [...this.#responses].at(-1);
    if (newest && !newest.headersSent) this.#makeLast(newest);
  }

  /**
   * Asks the client to send its next requests on another connection: over HTTP/1.1 with the next
   * reply, over HTTP/2 at once, naming the last request that is served. Calls go on to their end.
   */
  retire(): void {
    this.closeAfterReply();
    this.session?.close();
  }

  /** Ends it, for a reason that operators should know; over HTTP/2 after a GOAWAY, if that can be sent. */
  end(reason: EndReason): void {
    if (this.#isEnding || this.socket.destroyed) return;
    this.#isEnding = true;
    this.report(reason);
    if (this.session === undefined || this.session.destroyed) {
      this.destroy();
      return;
    }
    this.session.goaway(constants.NGHTTP2_NO_ERROR);
    setImmediate(() => this.destroy());
  }

  destroy(): void {
    this.socket.destroy();
  }

  /** Closes its responses once it has closed, which Node.js does not do behind a CONNECT. */
  closeResponses(): void {
    for (const response of this.#responses) response.emit("close");
  }

  #makeLast(response: ServerResponse): void {
    response.setHeader("connection", "close");
    this.#hasLastReply = true;
  }
}
