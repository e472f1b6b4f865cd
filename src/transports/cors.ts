import type { IncomingMessage, ServerResponse } from "node:http";
import { cors } from "@connectrpc/connect";

const allowedMethods = ["GET", "HEAD", "POST"].join(", ");
const allowedHeaders = [...cors.allowedHeaders, "Authorization", "Idempotency-Key"].join(", ");
const exposedHeaders = [...cors.exposedHeaders, "Link", "Retry-After", "WWW-Authenticate"].join(
  ", ",
);

/** How long a browser may keep the reply to a preflight, in seconds. */
const maxAgeSeconds = "7200";

/**
 * Lets the pages of an origin read the answer, if it is one of those given
 * (https://fetch.spec.whatwg.org/#http-cors-protocol).
 *
 * @returns whether it is
 */
export function allowOrigin(req: IncomingMessage, res: ServerResponse, origins: string[]): boolean {
  const { origin } = req.headers;
  if (origins.length === 0) return false;
  res.setHeader("vary", "Origin");
  if (origin === undefined || !(origins.includes("*") || origins.includes(origin))) return false;
  res.setHeader("access-control-allow-origin", origin);
  res.setHeader("access-control-expose-headers", exposedHeaders);
  return true;
}

/** Answers the question of a browser what a page may send, if the request is one. */
export function answerPreflight(req: IncomingMessage, res: ServerResponse): boolean {
  if (req.method !== "OPTIONS" || !req.headers["access-control-request-method"]) return false;
  res.writeHead(204, {
    "access-control-allow-methods": allowedMethods,
    "access-control-allow-headers": allowedHeaders,
    "access-control-max-age": maxAgeSeconds,
  });
  res.end();
  return true;
}
