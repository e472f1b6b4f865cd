import type { IncomingMessage, ServerResponse } from "node:http";
import type { Http2ServerRequest, ServerHttp2Stream } from "node:http2";
import type { CallHead } from "../calls/call.ts";

/** The path of a request without its query. */
export function pathOf({ url = "" }: IncomingMessage): string {
  const end = url.indexOf("?");
  return end === -1 ? url : url.slice(0, end);
}

/** The headers of a request, without the fields of HTTP/2 that only look like headers. */
function headersOf(req: IncomingMessage): Headers {
  const fields = Object.entries(req.headers).filter(([name]) => !name.startsWith(":"));
  return new Headers(fields.map(([name, value]) => [name, String(value)]));
}

/** A way to the headers of a request, named in lower case; of several values, the first counts. */
function headerOf({ headers }: IncomingMessage): CallHead["header"] {
  return (name) => [headers[name]].flat()[0];
}

/** What the gate wants to know of a request. */
export function toHead(req: IncomingMessage, res: ServerResponse) {
  return {
    // Each request of HTTP/2 has another proxy for its socket, a session has one.
    socket: streamOf(req)?.session?.socket ?? req.socket,
    reply: res,
    isClosed: () => isClosed(req, res),
    // A stream of HTTP/2 that was reset looks finished too.
    wasSent: () => res.writableFinished && !streamOf(req)?.rstCode,
    header: headerOf(req),
    requestHeader: () => headersOf(req),
    requestMethod: req.method ?? "",
    url: `http://${req.headers.host ?? req.headers[":authority"]}${req.url}`,
  } satisfies Partial<CallHead>;
}

/** Whether the reply was sent or never will be. */
export function isClosed(req: IncomingMessage, res: ServerResponse): boolean {
  return res.closed || streamOf(req)?.closed === true;
}

/** The stream of a request that came by HTTP/2. */
function streamOf(req: IncomingMessage): ServerHttp2Stream | undefined {
  return (req as unknown as Partial<Http2ServerRequest>).stream;
}

/** The headers of an answer in JSON, which may hold a record. */
export const jsonHeaders = { "content-type": "application/json", "cache-control": "no-store" };

/** Answers with JSON. */
export function answerJson(res: ServerResponse, body: string | Uint8Array, status = 200): void {
  res.writeHead(status, { ...jsonHeaders, "content-length": Buffer.byteLength(body) });
  res.end(body);
}
