import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from "node:http";
import type { ConnectionUsage } from "./connection-usage.ts";
import { Exchange } from "./exchange.ts";

/** The most fields that a request may have. */
export const maxFields = 128;

/** The most trailers that a request may have, which nothing reads. */
const maxTrailers = 16;

/** The status and the text with which a request is refused that is none of HTTP/1.1 (RFC 9112). */
function findFault({ httpVersion, rawHeaders }: IncomingMessage): [number, string] | undefined {
  // The parser lets through what looks like other versions.
  if (httpVersion !== "1.1" && httpVersion !== "1.0") return [505, "the version is not HTTP/1.1"];
  if (rawHeaders.length > 2 * maxFields) return [431, `there are more than ${maxFields} headers`];
  let hosts = 0;
  for (let i = 0; i < rawHeaders.length; i += 2) {
    if (rawHeaders[i]?.toLowerCase() === "host") hosts += 1;
  }
  const isFine = hosts === 1 || (hosts === 0 && httpVersion === "1.0");
  return isFine ? undefined : [400, "there must be one Host header"];
}

/** The beginning of a target in absolute form (RFC 9112, section 3.2.2). */
const absoluteForm = /^https?:\/\/([^/?]*)/i;

/** One request over HTTP/1.1, and its response. */
export class Http1Exchange extends Exchange {
  readonly httpVersion = "1.1";
  readonly url: string;
  /** How it is refused; undefined if it is a request of HTTP/1.1. */
  readonly fault: ReturnType<typeof findFault>;
  readonly #req: IncomingMessage;
  readonly #res: ServerResponse;

  constructor(req: IncomingMessage, res: ServerResponse, usage: ConnectionUsage) {
    super(req.socket, req.headers, [req.url ?? "", ...req.rawHeaders], req, res, usage);
    this.#req = req;
    this.#res = res;
    this.url = (req.url ?? "").replace(absoluteForm, "");
    this.fault = findFault(req);
    const { "content-length": length, "transfer-encoding": encoding } = req.headers;
    if (length !== undefined || encoding !== undefined) this.body.buffer();
    if (encoding !== undefined) req.once("end", () => this.#dropTrailers());
  }

  /** How much of the body has come, in bytes. */
  get bodyBytes(): number {
    return this.body.size;
  }

  /** Whether all of the request has come. */
  get isComplete(): boolean {
    return this.#req.complete;
  }

  /** Whether all of the response was given to Node.js. */
  get isEnded(): boolean {
    return this.#res.writableEnded;
  }

  get method(): string {
    return this.#req.method ?? "";
  }

  get authority(): string {
    return absoluteForm.exec(this.#req.url ?? "")?.[1] ?? this.headers.host ?? "";
  }

  get headersSent(): boolean {
    return this.#res.headersSent;
  }

  get status(): number {
    return this.#res.statusCode;
  }

  get wasSent(): boolean {
    return this.#res.writableFinished;
  }

  /** Thousands can come in one packet, and would be kept as long as the exchange. */
  #dropTrailers(): void {
    if (this.#req.rawTrailers.length > 2 * maxTrailers) this.destroy();
    this.#req.rawTrailers = [];
  }

  /** Makes the response the last one of its connection, if that can still be said. */
  announceClose(): void {
    if (!this.headersSent) this.addHeader("connection", "close");
  }

  /** Closes a response that Node.js does not. */
  abandon(): void {
    this.#res.emit("close");
  }

  protected sendContinue(): void {
    if (this.#req.httpVersion === "1.1") this.#res.writeContinue();
  }

  begin(status: number, headers: OutgoingHttpHeaders): void {
    this.#res.writeHead(status, this.withAdded(headers));
  }

  destroy(): void {
    this.socket.destroy();
  }

  protected respond(
    status: number,
    headers: OutgoingHttpHeaders,
    body: string | Uint8Array | undefined,
  ): void {
    this.begin(status, headers);
    this.#res.end(body);
    this.body.drop();
  }
}
