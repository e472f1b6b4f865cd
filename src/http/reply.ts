import type { OutgoingHttpHeaders, ServerResponse } from "node:http";
import type { Http2ServerResponse } from "node:http2";

/** The response to a request. */
export type HttpResponse = ServerResponse | Http2ServerResponse;

/** A listener for errors that are reported elsewhere: without one, Node.js ends the process. */
export function ignore(): void {}

/** Sends all of a response; the headers become its own. */
export function send(
  response: HttpResponse,
  status: number,
  headers: OutgoingHttpHeaders,
  body?: string | Uint8Array,
): void {
  if (body !== undefined) headers["content-length"] = Buffer.byteLength(body);
  // Both kinds have these methods; only their types differ.
  const either = response as ServerResponse;
  either.writeHead(status, headers);
  either.end(body);
}
