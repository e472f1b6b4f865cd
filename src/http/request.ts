import type { IncomingMessage } from "node:http";
import { constants, type Http2ServerRequest, type ServerHttp2Stream } from "node:http2";
import type { Readable } from "node:stream";
import { messageTooLarge } from "../errors.ts";
import type { Connection } from "./connection.ts";

/** A request as Node.js hands it over. */
export type HttpRequest = IncomingMessage | Http2ServerRequest;

/**
 * How long a client may take for the rest of a request that was replied to, and how long it may pause,
 * in milliseconds: many read the reply only then.
 */
const restTimeoutMs = 180_000;
const restPauseMs = 5_000;

/** The path of a request, without its query. */
export function pathOf({ url = "" }: HttpRequest): string {
  const end = url.indexOf("?");
  return end === -1 ? url : url.slice(0, end);
}

/** The parameters in the query of a request. */
export function queryOf({ url = "" }: HttpRequest): URLSearchParams {
  const start = url.indexOf("?");
  // It takes a first question mark off, also one that is a part of a name.
  return new URLSearchParams(start === -1 ? "" : url.slice(start));
}

/**
 * Reads all of a body. It is kept in one piece, however small the parts are in which it comes. Never
 * settles if the client disconnects.
 *
 * @param overhead how many bytes it may have besides `maxBytes` of a message
 * @throws {ConnectError} MESSAGE_TOO_LARGE, if it is longer; the rest is left unread
 */
export function readBody(request: Readable, maxBytes: number, overhead: number): Promise<Buffer> {
  const limit = maxBytes + overhead;
  return new Promise((resolve, reject) => {
    let body: Buffer = Buffer.alloc(0);
    let size = 0;
    const onData = (chunk: Buffer) => {
      const end = size + chunk.length;
      if (end > limit) {
        request.off("data", onData).off("end", onEnd);
        reject(messageTooLarge(maxBytes));
        return;
      }
      // A lone chunk is copied, too: a small one is in V8's heap, and a view on it would move it out.
      if (end > body.length) {
        const larger = Buffer.allocUnsafe(Math.min(2 * end, limit));
        body.copy(larger, 0, 0, size);
        body = larger;
      }
      chunk.copy(body, size);
      size = end;
    };
    const onEnd = () => {
      // Node.js ends the body of a request that was reset, too.
      if (!request.destroyed) resolve(body.subarray(0, size));
    };
    request.on("data", onData).on("end", onEnd);
    // Node.js ends a stream without bytes also if nobody has asked for them yet.
    if (request.readableEnded) onEnd();
  });
}

/**
 * Drops what is left of a request that is replied to in this turn, so that the connection stays of
 * use: Node.js reads no request, and closes no stream, behind one that is unread. It would drop the
 * rest itself after the reply, without a word of what still comes. What takes too long is cut off, by
 * which some clients miss the reply.
 *
 * @param goesOnMs how long the rest may go on arriving, in milliseconds
 */
export function dropRest(
  request: HttpRequest | ServerHttp2Stream,
  connection: Connection,
  goesOnMs = restTimeoutMs,
): void {
  const isWhole = () => ("complete" in request ? request.complete : request.readableEnded);
  if (isWhole()) return;
  const cutOff = () => {
    if (isWhole()) return;
    const stream = "stream" in request ? request.stream : request;
    // The client need not send the rest (RFC 9113, 8.1).
    if ("rstCode" in stream) stream.close(constants.NGHTTP2_NO_ERROR);
    else connection.end("unfinished_request");
  };
  // What came during a long turn of the event loop is read first.
  const timer = setTimeout(() => setImmediate(cutOff), restPauseMs).unref();
  const end = performance.now() + goesOnMs;
  request.on("data", () => {
    if (performance.now() < end) timer.refresh();
  });
  request.once("end", () => clearTimeout(timer));
  // A listener alone does not go on with a body that was paused.
  request.resume();
}
