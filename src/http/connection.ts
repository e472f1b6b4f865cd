import type { EventEmitter } from "node:events";
import { type ServerResponse, STATUS_CODES } from "node:http";
import { constants, type ServerHttp2Session } from "node:http2";
import type { Socket } from "node:net";
import { limits } from "../limits.ts";
import { describePeer, type Peer } from "./peer.ts";
import type { Strangers } from "./unadmitted-requests.ts";

/** How long a client has to read the reply to a request that could not be parsed, in milliseconds. */
const refusalMs = 5_000;

/**
 * How long before its client's certificate expires a connection is retired, in milliseconds, so that one
 * with a renewed certificate can take over. At most half of the time that was left when it was opened.
 */
const certificateNoticeMs = 60_000;

/** The status of that reply by Node.js's error code; 400 for any other. */
const refusals: Record<string, number> = {
  HPE_HEADER_OVERFLOW: 431,
  ERR_HTTP_REQUEST_TIMEOUT: 408,
};

/** Why the server ends a connection, as the metric names it. */
export type EndReason =
  | "idle_replaced"
  | "refused"
  | "no_handshake"
  | "no_settings"
  | "not_closed"
  | "unread_reply"
  | "unfinished_request"
  | "pipelining"
  | "too_many_streams"
  | "unadmitted_requests"
  | "http1_error"
  | "http2_error"
  | "http2_idle_error"
  | "certificate";

/** Identifies a connection; the same for its TCP and its TLS socket. */
export function keyOf({ remoteAddress, remotePort, localAddress, localPort }: Socket): string {
  return `${remoteAddress} ${remotePort} ${localAddress} ${localPort}`;
}

/** Called with the reason why a connection ends, and its client's address. */
export type OnEnd = (reason: EndReason, peer: string, cause?: string) => void;

export class Connection {
  /** The TLS socket if any, else the TCP socket: Node.js can crash if a TCP socket below TLS closes first. */
  socket: Socket;
  readonly key: string;
  session: ServerHttp2Session | undefined;
  /** The client; its certificate is known after the TLS handshake. */
  peer: Peer;
  /** When the connection is too old, by performance.now(). */
  retiresAt: number;
  /** When its client is late, by performance.now(), and why the connection then ends. */
  deadline: { at: number; reason: EndReason } | undefined;
  readonly #onEnd: OnEnd;
  /** Absent once it has carried an admitted call. */
  #strangers: Strangers | undefined;
  #isReported = false;
  #idleSince = performance.now();
  #calls = 0;
  readonly #responses = new Set<ServerResponse>();
  #isEnding = false;
  #closesAfterReply = false;
  #hasLastReply = false;

  /**
   * @param strangers counts its requests until it has carried an admitted call
   * @param onEnd called once if the server ends the connection
   */
  constructor(socket: Socket, retiresAt: number, strangers: Strangers, onEnd: OnEnd) {
    this.socket = socket;
    this.key = keyOf(socket);
    this.peer = describePeer(socket);
    this.retiresAt = retiresAt;
    this.#strangers = strangers;
    this.#onEnd = onEnd;
  }

  /** Reports, once, why the server ends the connection. */
  report(reason: EndReason, cause?: string): void {
    if (this.#isReported) return;
    this.#isReported = true;
    this.#onEnd(reason, this.peer.address, cause);
  }

  /**
   * Counts a request of a stranger until its response or stream closes.
   *
   * @returns false if the connection is ending, so that nobody waits for a reply
   */
  countRequest(response: EventEmitter): boolean {
    if (!this.#isEnding) this.#strangers?.count(this, response);
    return !this.#isEnding;
  }

  /** Whether it has never carried an admitted call. */
  get isStranger(): boolean {
    return this.#strangers !== undefined;
  }

  /** When it became idle, by performance.now(); undefined while it carries a call. */
  get idleSince(): number | undefined {
    return this.#calls > 0 ? undefined : this.#idleSince;
  }

  /** Ends it for this reason if its client takes longer than this time in ms; replaces any earlier deadline. */
  expectWithin(ms: number, reason: EndReason): void {
    this.deadline = { at: performance.now() + ms, reason };
  }

  /**
   * Takes the TLS socket, and learns of the client's certificate, before whose end it retires. With one that is not
   * valid, calls are refused, and it retires soon.
   */
  secure(socket: Socket): void {
    this.socket = socket;
    this.peer = describePeer(socket);
    const { certificate } = this.peer;
    if (certificate === undefined) return;
    const leftMs = certificate.validTo - Date.now();
    const isValid = certificate.isTrusted && leftMs > 0;
    const noticeMs = Math.min(certificateNoticeMs, leftMs / 2);
    const endsInMs = isValid ? leftMs - noticeMs : certificateNoticeMs;
    this.retiresAt = Math.min(this.retiresAt, performance.now() + endsInMs);
  }

  beginSession(session: ServerHttp2Session): void {
    this.session = session;
    // Node.js waits without limit for the first settings, and for the client to read the last bytes.
    this.expectWithin(limits.beginMs, "no_settings");
    session.once("remoteSettings", () => {
      this.deadline = undefined;
    });
    session.once("close", () => this.expectWithin(limits.unreadMs, "not_closed"));
    session.on("error", ({ code, message }: NodeJS.ErrnoException) => {
      // Other errors come from the socket (such as a reset by the client) or a GOAWAY of the client.
      if (!/^ERR_HTTP2_(?!SESSION_ERROR$)/.test(String(code))) return;
      // nghttp2 reports the GOAWAY that Go clients send on closing as an error.
      this.report(this.#calls === 0 ? "http2_idle_error" : "http2_error", message);
    });
  }

  /**
   * Protects it from being replaced by a new one, until the returned function is called.
   *
   * @param isAdmitted whether it is for an admitted call, from which on its client is known
   */
  keepBusy(isAdmitted: boolean): () => void {
    if (isAdmitted) {
      this.#strangers?.forget(this);
      this.#strangers = undefined;
    }
    this.#calls += 1;
    return () => {
      this.#calls -= 1;
      if (isAdmitted) this.#idleSince = performance.now();
    };
  }

  /**
   * Tracks the response to an HTTP/1.1 request.
   *
   * @returns false if the client was told that no response will follow (RFC 9112, 9.6)
   */
  addResponse(response: ServerResponse): boolean {
    this.#responses.add(response);
    response.once("close", () => this.#responses.delete(response));
    if (this.#responses.size > limits.unanswered) this.end("pipelining");
    if (this.#hasLastReply) return false;
    if (this.#closesAfterReply) this.#makeLast(response);
    return true;
  }

  /**
   * Ends the connection after an error of Node.js's HTTP/1.1: its next request cannot be parsed, or takes too long. The
   * client gets a status, and time to read it: an immediate close would become a reset if more bytes arrive. While an
   * earlier request is unanswered, it gets none, as this would pass for that request's.
   */
  refuse(error: NodeJS.ErrnoException): void {
    const { socket } = this;
    const code = String(error.code);
    if (code === "ERR_HTTP_REQUEST_TIMEOUT") this.report("unfinished_request");
    else if (code.startsWith("HPE_")) this.report("http1_error", code);
    // Every byte after the unparsable ones causes another error.
    if (socket.writableEnded) return;
    const responses = [...this.#responses];
    // A request that is not complete is the one that cannot be parsed.
    const isAwaited = responses.some(({ headersSent, req }) => headersSent || req.complete);
    const status = refusals[code] ?? 400;
    const head = `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n`;
    if (!isAwaited) socket.end(head);
    if (responses.length > 0) socket.destroy();
    else setTimeout(() => socket.destroy(), refusalMs).unref();
  }

  /** Over HTTP/1.1, closes the connection with the newest reply, or with the next if its headers are sent. */
  closeAfterReply(): void {
    this.#closesAfterReply = true;
    const newest = [...this.#responses].at(-1);
    if (newest && !newest.headersSent) this.#makeLast(newest);
  }

  /**
   * Asks the client to open another connection for its next requests: over HTTP/1.1 with the next
   * reply, over HTTP/2 at once, naming the last request that is served. Calls in flight go on.
   */
  retire(): void {
    this.closeAfterReply();
    this.session?.close();
  }

  /** Ends the connection and reports the reason; over HTTP/2 after a GOAWAY, if that can be sent. */
  end(reason: EndReason): void {
    if (this.#isEnding || this.socket.destroyed) return;
    this.#isEnding = true;
    this.report(reason);
    if (!this.session || this.session.destroyed) {
      this.socket.destroy();
      return;
    }
    const isFlood = reason === "too_many_streams" || reason === "unadmitted_requests";
    this.session.goaway(constants[isFlood ? "NGHTTP2_ENHANCE_YOUR_CALM" : "NGHTTP2_NO_ERROR"]);
    // At once: Node.js would still create the streams that it has read.
    if (isFlood) this.session.destroy();
    setImmediate(() => this.socket.destroy());
  }

  /** Emits `close` on responses after the connection has closed, which Node.js omits after a CONNECT. */
  closeResponses(): void {
    for (const response of this.#responses) response.emit("close");
  }

  #makeLast(response: ServerResponse): void {
    response.setHeader("connection", "close");
    this.#hasLastReply = true;
  }
}
