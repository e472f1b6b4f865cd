import type { IncomingHttpHeaders } from "node:http";
import { type HttpResponse, send } from "./reply.ts";
import type { HttpRequest } from "./request.ts";

const allowedMethods = "GET, HEAD, POST";

/** What a page may read of a reply: what gRPC-Web and Connect need, and what REST has besides. */
const exposedHeaders =
  "Grpc-Status, Grpc-Message, Grpc-Status-Details-Bin, Content-Encoding, Connect-Content-Encoding, " +
  "Link, Retry-After, WWW-Authenticate";

/** How long a browser may keep the reply to a preflight, in seconds. */
const maxAgeSeconds = "7200";

/** The hosts of a service that listens on this machine alone, as requests name them. */
export function hostsOf(host: string): ReadonlySet<string> {
  return new Set(["localhost", "127.0.0.1", "[::1]", host.includes(":") ? `[${host}]` : host]);
}

/** The host that a request is meant for, and its port where that is given. */
export function authorityOf(headers: IncomingHttpHeaders): string {
  return String(headers[":authority"] ?? headers.host ?? "");
}

/**
 * Whether a request comes from a web page that must not call. A service that listens on this
 * machine alone and asks for no credentials is open to every page in a browser there, directly or under
 * a name that was bound to this machine (DNS rebinding).
 *
 * @param hosts the hosts that requests may name
 * @param corsOrigins the origins whose pages may call, or `*` for any
 * @returns why the request is refused, or undefined if it is not
 */
export function findCrossOrigin(
  headers: IncomingHttpHeaders,
  hosts: ReadonlySet<string>,
  corsOrigins: string[],
): string | undefined {
  const { origin, "sec-fetch-site": site } = headers;
  const authority = authorityOf(headers);
  if (!hosts.has(authority.replace(/:\d+$/, "").toLowerCase())) {
    return `the Host of the request is not one of ${[...hosts].join(", ")}`;
  }
  if (origin === undefined) {
    return site === "cross-site" ? "the request comes from a page of another site" : undefined;
  }
  const isKnown =
    corsOrigins.includes("*") ||
    corsOrigins.includes(origin) ||
    origin.replace(/^https?:\/\//, "") === authority;
  return isKnown ? undefined : "the Origin of the request is not one of --cors-origin";
}

/**
 * Lets the pages of an origin read the response, if it is one of those given, and replies to a
 * browser that asks what they may send (https://fetch.spec.whatwg.org/#http-cors-protocol).
 *
 * @returns whether it has replied
 */
export function allowOrigin(req: HttpRequest, res: HttpResponse, origins: string[]): boolean {
  if (origins.length === 0) return false;
  res.setHeader("vary", "Origin");
  const { origin, "access-control-request-method": asked } = req.headers;
  if (origin === undefined || !(origins.includes("*") || origins.includes(origin))) return false;
  res.setHeader("access-control-allow-origin", origin);
  res.setHeader("access-control-expose-headers", exposedHeaders);
  if (req.method !== "OPTIONS" || asked === undefined) return false;
  send(res, 204, {
    "access-control-allow-methods": allowedMethods,
    // A call can have any, such as those of a trace.
    "access-control-allow-headers": req.headers["access-control-request-headers"] ?? "",
    "access-control-max-age": maxAgeSeconds,
  });
  return true;
}
