import type { OutgoingHttpHeaders, ServerResponse } from "node:http";
import type { ServerHttp2Stream } from "node:http2";
import { limits } from "../limits.ts";
import type { Connection } from "./connection.ts";
import { dropRest, type HttpRequest } from "./request.ts";

/** A response of Node.js over either HTTP; over HTTP/2 it has a stream, and methods with the same names. */
export type HttpResponse = ServerResponse & { readonly stream?: ServerHttp2Stream };

/** Emits events once a response was sent; over HTTP/2, `response` itself also waits for its request's end. */
export function outputOf(response: HttpResponse | ServerHttp2Stream) {
  return (response as HttpResponse).stream ?? response;
}

/**
 * Closes a connection whose client does not read, unless the returned timer is cleared first: once all that is
 * being sent of a reply has left the process. Each part of a whole list has a timer of its own.
 *
 * @param onLate called before the connection is closed
 */
export function startReplyTimer(connection: Connection, onLate?: () => void): NodeJS.Timeout {
  const end = () => {
    onLate?.();
    connection.end("unread_reply");
  };
  return setTimeout(end, connection.isStranger ? limits.strangerUnreadMs : limits.unreadMs);
}

/**
 * Discards the rest of a request that is not a call, and closes the connection if the reply is not read in time. Call
 * it before the reply or in the same turn of the event loop.
 */
export function prepareReply(
  connection: Connection,
  request: HttpRequest,
  response: HttpResponse,
): void {
  const output = outputOf(response);
  // The client has left; no event would follow.
  if (output.destroyed) return;
  dropRest(request, connection);
  const timer = startReplyTimer(connection);
  for (const event of ["finish", "close"]) output.once(event, () => clearTimeout(timer));
}

/** A listener for errors that are reported elsewhere: without one, Node.js ends the process. */
export function ignore(): void {}

export function send(
  response: HttpResponse,
  status: number,
  headers: OutgoingHttpHeaders,
  body?: string | Uint8Array,
): void {
  const length = body === undefined ? undefined : { "content-length": Buffer.byteLength(body) };
  response.writeHead(status, { ...headers, ...length });
  response.end(body);
}
