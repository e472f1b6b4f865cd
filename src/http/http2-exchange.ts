import type { OutgoingHttpHeaders } from "node:http";
import { constants, type IncomingHttpHeaders, type ServerHttp2Stream } from "node:http2";
import type { Socket } from "node:net";
import type { ConnectionUsage } from "./connection-usage.ts";
import { Exchange, ignore } from "./exchange.ts";

/** How often to look whether a response was sent, in milliseconds. */
const sentCheckMs = 100;

/** One stream of HTTP/2: a request and its response. */
export class Http2Exchange extends Exchange {
  readonly httpVersion = "2";
  readonly #stream: ServerHttp2Stream;
  #hasTrailers = false;

  constructor(
    stream: ServerHttp2Stream,
    headers: IncomingHttpHeaders,
    rawHeaders: string[],
    socket: Socket,
    usage: ConnectionUsage,
  ) {
    super(socket, headers, rawHeaders, stream, stream, usage);
    this.#stream = stream;
    // If a client resets it with NO_ERROR, Node.js waits for what was to be written.
    const abort = () => process.nextTick(() => stream.destroy());
    if (stream.aborted) abort();
    else stream.on("aborted", abort);
    // Nor does it tell of that once all of the response was given to it.
    stream.on("end", () => {
      if (stream.closed && !stream.writableFinished) stream.destroy();
    });
    if (!stream.endAfterHeaders) this.body.buffer();
    // V8 keeps a stream until it collects all of the heap, and what its listeners refer to.
    this.onClose(() => {
      // While it listens for removals, each one is an event.
      stream.removeAllListeners("removeListener");
      stream.removeAllListeners().on("error", ignore);
    });
  }

  get method(): string {
    return String(this.headers[":method"]);
  }

  get url(): string {
    return this.headers[":path"] ?? "";
  }

  get authority(): string {
    return this.headers[":authority"] ?? this.headers.host ?? "";
  }

  get headersSent(): boolean {
    return this.#stream.headersSent;
  }

  get status(): number {
    return Number(this.#stream.sentHeaders?.[":status"]);
  }

  get wasSent(): boolean {
    const { headersSent, writableFinished } = this.#stream;
    const isWritten = this.unwrittenParts === 0 && !this.hasFailed && !this.socket.destroyed;
    const isFinished = writableFinished || (isWritten && !this.#hasTrailers);
    return headersSent && this.#isWhole && isFinished;
  }

  /** Whether all of the response was given to Node.js, which ends what a client has reset, too. */
  get #isWhole(): boolean {
    const { writableEnded, rstCode, aborted } = this.#stream;
    return writableEnded && !aborted && rstCode === constants.NGHTTP2_NO_ERROR;
  }

  /** Node.js closes a stream once its session has all of it, which may not be written yet. */
  protected override onResponseClose(): void {
    if (!this.#isWhole || this.unwrittenParts === 0 || this.socket.destroyed) {
      this.close();
      return;
    }
    const { socket } = this;
    const onLost = () => this.close();
    socket.once("close", onLost);
    this.onClose(() => socket.off("close", onLost));
  }

  begin(status: number, headers: OutgoingHttpHeaders, trailers?: () => OutgoingHttpHeaders): void {
    // It knows of its end some turns before the exchange does.
    if (this.#isOver) return;
    this.#sendHeaders(status, headers, { waitForTrailers: trailers !== undefined });
    if (trailers) this.#sendTrailers(trailers);
    // Node.js has ended the response to HEAD before it begins.
    else if (this.#stream.writableFinished) this.#endRequest();
    else this.#stream.once("finish", () => this.#endRequest());
  }

  destroy(): void {
    if (this.isClosed) return;
    // What its session still has of it goes with the connection only.
    if (this.#stream.destroyed) this.socket.destroy();
    this.#stream.close(constants.NGHTTP2_INTERNAL_ERROR);
    // A connection that takes no more bytes does not take the frame that says so either.
    this.#stream.destroy();
  }

  protected respond(
    status: number,
    headers: OutgoingHttpHeaders,
    body: string | Uint8Array | undefined,
    trailers: OutgoingHttpHeaders | undefined,
  ): void {
    const stream = this.#stream;
    if (this.#isOver) return;
    const waitForTrailers = trailers !== undefined;
    const endStream = body === undefined && !waitForTrailers;
    this.#sendHeaders(status, headers, { endStream, waitForTrailers });
    if (trailers) this.#sendTrailers(() => trailers);
    if (!endStream && this.method !== "HEAD") {
      // A stream with trailers closes when its body was written.
      if (body !== undefined && !trailers) this.writePart(body);
      stream.end(trailers && body);
    }
    // What still comes is dropped, or else kept for as long as the reply is not read.
    if (!stream.readableEnded) this.body.drop();
    if (!waitForTrailers) setImmediate(() => this.#endRequest());
  }

  get #isOver(): boolean {
    return this.#stream.destroyed || this.#stream.closed;
  }

  protected sendContinue(): void {
    if (this.#isOver) return;
    this.#stream.additionalHeaders({ ":status": constants.HTTP_STATUS_CONTINUE });
  }

  #sendHeaders(
    status: number,
    headers: OutgoingHttpHeaders,
    options: { endStream?: boolean; waitForTrailers: boolean },
  ): void {
    const all = this.withAdded(headers);
    // As Node.js sends them: of an object it makes another one.
    const fields = [":status", String(status)];
    for (const name in all) {
      if (all[name] !== undefined) fields.push(name, String(all[name]));
    }
    this.#stream.respond(fields, options);
  }

  #sendTrailers(trailers: () => OutgoingHttpHeaders): void {
    const stream = this.#stream;
    this.#hasTrailers = true;
    stream.on("wantTrailers", () => {
      stream.sendTrailers(trailers());
      // Node.js sends them a turn later.
      if (!stream.readableEnded) setImmediate(() => this.#endRequest());
    });
  }

  /** What is replied to before it is all there need not be sent (RFC 9113, 8.1). */
  #endRequest(): void {
    if (this.#stream.readableEnded || this.#isOver) return;
    const { localClose, remoteClose } = this.#stream.state;
    if (remoteClose === 1) return;
    // Of a stream that is reset, nghttp2 drops what waits to be sent, the end of the response too.
    if (localClose === 0) setTimeout(() => this.#endRequest(), sentCheckMs);
    else this.#stream.close(constants.NGHTTP2_NO_ERROR);
  }
}
