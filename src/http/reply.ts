import type { OutgoingHttpHeaders, ServerResponse } from "node:http";
import type { Http2ServerResponse, ServerHttp2Stream } from "node:http2";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import type { Connection } from "./connection.ts";
import { dropRest, type HttpRequest } from "./request.ts";

/** The largest part of a reply that is sent in parts, in bytes. */
const partBytes = 64 * 1024;

export type HttpResponse = ServerResponse | Http2ServerResponse;

/** What tells when a response was sent. Over HTTP/2 the response itself waits for the end of its request, too. */
export function outputOf(
  response: HttpResponse | ServerHttp2Stream,
): ServerResponse | ServerHttp2Stream {
  return "stream" in response ? response.stream : response;
}

/**
 * Drops the rest of a request that is no call, in the turn in which it is replied to, and ends the
 * connection if a response of at most `maxBytes` is not read in time.
 */
export function followReply(
  connection: Connection,
  request: HttpRequest,
  response: HttpResponse,
  maxBytes = 0,
): void {
  const output = outputOf(response);
  // Its client has left, and no event would follow.
  if (output.destroyed) return;
  dropRest(request, connection);
  const stop = connection.endUnlessRead(output, maxBytes);
  for (const event of ["finish", "close"]) output.once(event, stop);
}

/** A listener for errors that are reported elsewhere: without one, Node.js ends the process. */
export function ignore(): void {}

export function send(
  response: HttpResponse,
  status: number,
  headers: OutgoingHttpHeaders,
  body?: string | Uint8Array,
): void {
  // Both kinds have these methods; only their types differ.
  const either = response as ServerResponse;
  const length = body === undefined ? undefined : { "content-length": Buffer.byteLength(body) };
  either.writeHead(status, { ...headers, ...length });
  either.end(body);
}

/**
 * Sends a large response in parts, each once the one before has left the process, so that little is
 * held for a client that does not read. It rejects if the client leaves.
 */
export async function sendInParts(
  { method }: HttpRequest,
  response: HttpResponse,
  headers: OutgoingHttpHeaders,
  body: Uint8Array,
): Promise<void> {
  const either = response as ServerResponse;
  either.writeHead(200, { ...headers, "content-length": body.length });
  if (method === "HEAD") either.end();
  else await pipeline(Readable.from(partsOf(body), { highWaterMark: 1 }), either);
}

function* partsOf(body: Uint8Array): Generator<Uint8Array> {
  for (let at = 0; at < body.length; at += partBytes) yield body.subarray(at, at + partBytes);
}
