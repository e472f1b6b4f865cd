import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from "node:http";
import {
  constants,
  type Http2ServerRequest,
  type Http2ServerResponse,
  type ServerHttp2Stream,
} from "node:http2";
import type { Socket } from "node:net";

/** A request as Node.js hands it over. */
export type HttpRequest = IncomingMessage | Http2ServerRequest;

/** The response to a request. */
export type HttpResponse = ServerResponse | Http2ServerResponse;

/** How long a client has to send the rest of a request that was replied to, in milliseconds. */
const restTimeoutMs = 1_000;

/** A listener for errors that are reported elsewhere: without one, Node.js ends the process. */
export function ignore(): void {}

/** The path of a request, without its query. */
export function pathOf({ url = "" }: HttpRequest): string {
  const end = url.indexOf("?");
  return end === -1 ? url : url.slice(0, end);
}

/** The query of a request, without its question mark. */
export function queryOf({ url = "" }: HttpRequest): string {
  const start = url.indexOf("?");
  return start === -1 ? "" : url.slice(start + 1);
}

/** The socket of a request's connection, the same for all of its requests. */
export function socketOf(request: HttpRequest): Socket {
  const session = "stream" in request ? request.stream.session : undefined;
  return session?.socket ?? request.socket;
}

/** Sends all of a response; the headers become its own. */
export function send(
  response: HttpResponse,
  status: number,
  headers: OutgoingHttpHeaders,
  body?: string | Uint8Array,
): void {
  if (body !== undefined) headers["content-length"] = Buffer.byteLength(body);
  // Both kinds have these methods, of types that differ.
  const either = response as ServerResponse;
  either.writeHead(status, headers);
  either.end(body);
}

/**
 * Drops what is left of a request that was replied to, so that the connection stays of use: Node.js
 * reads no request, and closes no stream, behind one that is unread. What takes longer is cut off.
 */
export function dropRest(request: HttpRequest | ServerHttp2Stream, socket: Socket): void {
  const isWhole = () => ("complete" in request ? request.complete : request.readableEnded);
  if (isWhole()) return;
  request.resume();
  const cutOff = () => {
    if (isWhole()) return;
    const stream = "stream" in request ? request.stream : request;
    // The client need not send the rest (RFC 9113, 8.1).
    if ("rstCode" in stream) stream.close(constants.NGHTTP2_NO_ERROR);
    else socket.destroy();
  };
  setTimeout(cutOff, restTimeoutMs).unref();
}
