import type { IncomingMessage } from "node:http";
import { constants, type Http2ServerRequest, type ServerHttp2Stream } from "node:http2";
import type { Readable } from "node:stream";
import { messageTooLarge } from "../failures.ts";
import { limits } from "../limits.ts";
import type { Connection } from "./connection.ts";

export type HttpRequest = IncomingMessage | Http2ServerRequest;

/** The path of a request, without its query. */
export function pathOf({ url = "" }: { url?: string | undefined }): string {
  const end = url.indexOf("?");
  return end === -1 ? url : url.slice(0, end);
}

export function queryOf({ url = "" }: HttpRequest): URLSearchParams {
  const start = url.indexOf("?");
  // With its "?", since URLSearchParams drops a leading one, which may be part of a name.
  return new URLSearchParams(start === -1 ? "" : url.slice(start));
}

/**
 * Reads a whole body into one buffer, however small its chunks. If the client disconnects, it does
 * not settle, or resolves with a part after its response has closed: an Http2ServerRequest is never
 * destroyed.
 *
 * @param overhead how many bytes are allowed beyond a message of `maxBytes`
 * @throws {Failure} MESSAGE_TOO_LARGE; the rest is left unread
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
      // Copies a lone chunk too: small ones are in V8's heap, and a view would move them out of it.
      if (end > body.length) {
        const larger = Buffer.allocUnsafe(Math.min(2 * end, limit));
        body.copy(larger, 0, 0, size);
        body = larger;
      }
      chunk.copy(body, size);
      size = end;
    };
    const onEnd = () => {
      // Node.js also ends the body of a request that was reset.
      if (!request.destroyed) resolve(body.subarray(0, size));
    };
    request.on("data", onData).on("end", onEnd);
    // Node.js ends an empty stream even before anybody reads it.
    if (request.readableEnded) onEnd();
  });
}

/**
 * Discards the rest of a request, so that the connection stays usable: Node.js neither reads the
 * next request nor closes the stream behind an unread body. Call it before the reply or in the same
 * turn of the event loop: later, Node.js would discard the rest itself, without events. Cuts off
 * what takes too long, which makes some clients miss the reply.
 *
 * @param goesOnMs how long the rest may go on arriving, in milliseconds
 */
export function dropRest(
  request: HttpRequest | ServerHttp2Stream,
  connection: Connection,
  goesOnMs: number = limits.restMs,
): void {
  const isWhole = () => ("complete" in request ? request.complete : request.readableEnded);
  if (isWhole()) return;
  const cutOff = () => {
    if (isWhole()) return;
    const stream = "stream" in request ? request.stream : request;
    // Tells the client not to send the rest (RFC 9113, 8.1).
    if ("rstCode" in stream) stream.close(constants.NGHTTP2_NO_ERROR);
    else connection.end("unfinished_request");
  };
  // Data that arrived during a long turn of the event loop is read first.
  const timer = setTimeout(() => setImmediate(cutOff), limits.restPauseMs).unref();
  const end = performance.now() + goesOnMs;
  request.on("data", () => {
    if (performance.now() < end) timer.refresh();
  });
  request.once("end", () => clearTimeout(timer));
  // Adding a listener does not resume a body that was paused.
  request.resume();
}
