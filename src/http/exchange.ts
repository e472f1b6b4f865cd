import type { IncomingHttpHeaders, OutgoingHttpHeaders } from "node:http";
import type { Socket } from "node:net";
import type { Readable, Writable } from "node:stream";
import { messageTooLarge } from "../service/errors.ts";
import type { ConnectionUsage } from "./connection-usage.ts";
import { ExchangeUsage } from "./exchange-usage.ts";
import { RequestBody } from "./request-body.ts";

/** Timeout of a client that is sent a response, or the rest or a part of one, in milliseconds. */
export const replyTimeoutMs = 30_000;

/** The longest that a timer of Node.js can wait, in milliseconds: some 24 days. */
export const maxTimerMs = 2 ** 31 - 1;

/** The size from which text is sent as bytes; below, it leaves in one piece with the headers. */
const largeTextBytes = 16 * 1024;

/** One request and its response, whichever version of HTTP carries them. */
export abstract class Exchange {
  abstract readonly httpVersion: "1.1" | "2";
  abstract readonly method: string;
  /** The path of the request with its query. */
  abstract readonly url: string;
  /** The host that the request is meant for, and its port where that is given. */
  abstract readonly authority: string;
  /** Node.js joins the values of a repeated one, but for `set-cookie`, which nothing here reads. */
  readonly headers: Readonly<Record<string, string | undefined>>;
  /** The connection itself, the same for all of its exchanges. */
  readonly socket: Socket;
  /** What it takes of what its connection may keep. */
  readonly usage: ExchangeUsage;
  /** The body of the request. */
  protected readonly body: RequestBody;
  /** Headers of whatever response there will be. */
  #added: OutgoingHttpHeaders | undefined;
  readonly #response: Writable;
  readonly #closeListeners: (() => void)[] = [];
  #isClosed = false;
  #timer: NodeJS.Timeout | undefined;
  #rejectWrite: ((reason: Error) => void) | undefined;

  /**
   * @param head the target of the request, and the names and values of its headers
   * @param response emits `close` when it has ended, whether it was sent or not
   */
  protected constructor(
    socket: Socket,
    headers: IncomingHttpHeaders,
    head: string[],
    request: Readable,
    response: Writable,
    connection: ConnectionUsage,
  ) {
    this.socket = socket;
    this.headers = headers as Record<string, string | undefined>;
    this.usage = new ExchangeUsage(connection, socket, head);
    this.body = new RequestBody(request, this.usage);
    this.#response = response;
    // Node.js emits errors after the end too, and an error without a listener ends the process.
    response.on("error", ignore);
    if (request !== (response as unknown)) request.on("error", ignore);
    response.on("close", () => this.onResponseClose());
  }

  /** Whether the headers of the response were sent. */
  abstract readonly headersSent: boolean;

  /** The status of the response, once its headers were sent. */
  abstract readonly status: number;

  /** Whether all of the response was sent, once that has closed. */
  abstract readonly wasSent: boolean;

  /** How many parts of the response Node.js has taken, and not written to the connection yet. */
  protected unwrittenParts = 0;

  /** Whether one of them could not be written. */
  protected hasFailed = false;

  /** Whether the response was sent or never will be. */
  get isClosed(): boolean {
    return this.#isClosed;
  }

  /** The path of the request without its query. */
  get path(): string {
    const { url } = this;
    const end = url.indexOf("?");
    return end === -1 ? url : url.slice(0, end);
  }

  /** The query of the request, from its `?` on; empty if there is none. */
  get query(): string {
    return this.url.slice(this.path.length);
  }

  /** All headers, without the fields of HTTP/2 that only look like headers. */
  toHeaders(): Headers {
    const fields = Object.entries(this.headers).filter(([name]) => !name.startsWith(":"));
    return new Headers(fields.map(([name, value]) => [name, String(value)]));
  }

  /** Calls back when the response was sent, or never will be; at once if that has happened. */
  onClose(listener: () => void): void {
    if (this.#isClosed) listener();
    else this.#closeListeners.push(listener);
  }

  /**
   * Calls back once if the exchange has not closed after this time in milliseconds; the client then
   * has {@link replyTimeoutMs} to read the reply. Replaces the previous limit; above
   * {@link maxTimerMs} there is none.
   */
  limit(ms: number, onLate: () => void): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    if (this.#isClosed || ms > maxTimerMs) return;
    this.#timer = setTimeout(() => {
      this.limit(replyTimeoutMs, () => this.destroy());
      onLate();
    }, ms);
  }

  /**
   * All of the body of the request. It is pending until {@link Exchange.stopReading} if the client
   * leaves.
   *
   * @param maxBytes how long its message may be
   * @param overhead how much longer the body may be
   * @throws {ConnectError} MESSAGE_TOO_LARGE
   */
  readBody(maxBytes: number, overhead = 0): Promise<Uint8Array> {
    if (Number(this.headers["content-length"] ?? 0) > maxBytes + overhead) {
      return Promise.reject(messageTooLarge(maxBytes));
    }
    this.#askForBody();
    return this.body.readAll(maxBytes, overhead);
  }

  /** Keeps the client from sending much more than is read by {@link Exchange.readChunks}. */
  stopBuffering(): void {
    this.body.stopBuffering();
  }

  /** The body of the request as it comes. Leaving it early keeps the connection. */
  readChunks(): AsyncGenerator<Uint8Array> {
    this.#askForBody();
    return this.body.readChunks();
  }

  /** Rejects a body that is being read. */
  stopReading(reason: Error): void {
    this.body.stop(reason);
  }

  /** Adds a header to whatever response there will be. */
  addHeader(name: string, value: string): void {
    this.#added = { ...this.#added, [name]: value };
  }

  /** The headers of a response, and the added ones that it does not set itself. */
  protected withAdded(headers: OutgoingHttpHeaders): OutgoingHttpHeaders {
    return this.#added ? { ...this.#added, ...headers } : headers;
  }

  /**
   * Sends all of a response, a large one on TLS in parts and later; does nothing if the exchange has
   * closed.
   *
   * @throws {ConnectError} OVERLOADED, if all connections together have left too much unsent
   * @param headers become the property of the exchange
   * @param trailers are sent by HTTP/2 only
   */
  send(
    status: number,
    headers: OutgoingHttpHeaders,
    body?: string | Uint8Array,
    trailers?: OutgoingHttpHeaders,
  ): void {
    if (this.#isClosed) return;
    const bytes = body === undefined ? 0 : Buffer.byteLength(body);
    this.usage.expectRoomFor(bytes);
    this.usage.keepReply(bytes);
    if (this.#timer === undefined) this.limit(replyTimeoutMs, () => this.destroy());
    if (body !== undefined && trailers === undefined) headers["content-length"] = bytes;
    // Of a text that is not read at once, Node.js keeps a copy in bytes besides the text.
    const isLarge = typeof body === "string" && bytes >= largeTextBytes;
    const whole = isLarge ? Buffer.from(body) : body;
    if (whole === undefined || this.method === "HEAD" || this.usage.tryWrite(bytes)) {
      this.respond(status, headers, whole, trailers);
      return;
    }
    this.begin(status, headers, trailers && (() => trailers));
    this.body.drop();
    this.#writeParts(whole).then(() => this.end(), ignore);
  }

  /**
   * Sends the headers of a response whose body is written part by part.
   *
   * @param trailers makes what follows the body; sent by HTTP/2 only
   */
  abstract begin(
    status: number,
    headers: OutgoingHttpHeaders,
    trailers?: () => OutgoingHttpHeaders,
  ): void;

  /**
   * Sends a part of the body and resolves when there is room for more.
   *
   * @throws {Error} the client has left, or read nothing for {@link replyTimeoutMs}
   */
  async write(part: string | Uint8Array): Promise<void> {
    this.usage.keepReply(Buffer.byteLength(part));
    await this.#writeParts(part);
  }

  /** Writes a body whose bytes are counted, on TLS part by part. */
  async #writeParts(body: string | Uint8Array): Promise<void> {
    const { usage } = this;
    for (const part of usage.partsOf(body)) {
      const bytes = Buffer.byteLength(part);
      if (!usage.tryWrite(bytes)) await usage.waitToWrite(bytes);
      if (this.#isClosed) throw new Error("the client left");
      const { promise, resolve, reject } = Promise.withResolvers<void>();
      const hasRoom = this.writePart(part, () => {
        usage.releaseReply(bytes);
        resolve();
      });
      if (hasRoom && !usage.isEncrypted) continue;
      this.#rejectWrite = reject;
      const timer = setTimeout(() => this.destroy(), replyTimeoutMs);
      await promise.finally(() => clearTimeout(timer));
    }
  }

  /** Writes to the response; that there is room for more does not say that it was sent. */
  protected writePart(part: string | Uint8Array, onWritten?: () => void): boolean {
    this.unwrittenParts += 1;
    return this.#response.write(part, (error) => {
      this.unwrittenParts -= 1;
      if (error) this.hasFailed = true;
      onWritten?.();
      if (this.unwrittenParts === 0 && this.#response.destroyed) this.close();
    });
  }

  /** Ends the body, whose rest the client then has {@link replyTimeoutMs} to read. */
  end(): void {
    this.limit(replyTimeoutMs, () => this.destroy());
    this.#response.end();
    // Node.js closes no stream whose request is unread, not even one that its client has reset.
    this.body.drop();
  }

  /** Breaks the exchange off, so that its client cannot take it for whole. */
  abstract destroy(): void;

  protected abstract respond(
    status: number,
    headers: OutgoingHttpHeaders,
    body: string | Uint8Array | undefined,
    trailers: OutgoingHttpHeaders | undefined,
  ): void;

  /** Asks the client for the body. */
  protected abstract sendContinue(): void;

  /** Asks for the body if the client waits for that (RFC 9110, 10.1.1). */
  #askForBody(): void {
    const { expect } = this.headers;
    if (expect !== undefined && /\b100-continue\b/i.test(expect)) this.sendContinue();
  }

  /** Node.js has closed the response. */
  protected onResponseClose(): void {
    this.close();
  }

  /** Tells of the end of the exchange, and gives back what it took. */
  protected close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    clearTimeout(this.#timer);
    this.#rejectWrite?.(new Error("the response was not read"));
    for (const listener of this.#closeListeners) listener();
    this.usage.close();
  }
}

/** A listener for errors that are reported elsewhere. */
export function ignore(): void {}
