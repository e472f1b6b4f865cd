import { cors } from "@connectrpc/connect";
import type { Exchange } from "./exchange.ts";

const allowedMethods = "GET, HEAD, POST";
const exposedHeaders = [...cors.exposedHeaders, "Link", "Retry-After", "WWW-Authenticate"].join(
  ", ",
);

/** How long a browser may keep the reply to a preflight, in seconds. */
const maxAgeSeconds = "7200";

/**
 * Lets the pages of an origin read the response, if it is one of those given
 * (https://fetch.spec.whatwg.org/#http-cors-protocol).
 *
 * @returns whether it is
 */
export function allowOrigin(exchange: Exchange, origins: string[]): boolean {
  const { origin } = exchange.headers;
  exchange.addHeader("vary", "Origin");
  if (origin === undefined || !(origins.includes("*") || origins.includes(origin))) return false;
  exchange.addHeader("access-control-allow-origin", origin);
  exchange.addHeader("access-control-expose-headers", exposedHeaders);
  return true;
}

/** Tells a browser what a page may send, if that is what the request asks. */
export function sendPreflight(exchange: Exchange): boolean {
  const { method, headers } = exchange;
  if (method !== "OPTIONS" || !headers["access-control-request-method"]) return false;
  exchange.send(204, {
    "access-control-allow-methods": allowedMethods,
    // A call can have any, such as those of a trace.
    "access-control-allow-headers": headers["access-control-request-headers"] ?? "",
    "access-control-max-age": maxAgeSeconds,
  });
  return true;
}
