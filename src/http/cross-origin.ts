import type { IncomingHttpHeaders } from "node:http";
import { type HttpResponse, send } from "./reply.ts";
import type { HttpRequest } from "./request.ts";

/** Reply headers that web pages may read: those of gRPC-Web and Connect, and those that only REST has. */
const exposedHeaders =
  "Grpc-Status, Grpc-Message, Grpc-Status-Details-Bin, Content-Encoding, Connect-Content-Encoding, " +
  "Link, Retry-After, WWW-Authenticate";

/** How long a browser may keep the reply to a preflight, in seconds. */
const maxAgeSeconds = "7200";

/** Host names by which requests may reach a service that listens on loopback only. */
export function hostsOf(host: string): ReadonlySet<string> {
  return new Set(["localhost", "127.0.0.1", "[::1]", host.includes(":") ? `[${host}]` : host]);
}

/** The host that a request names, with its port if given. */
export function authorityOf(headers: IncomingHttpHeaders): string {
  return String(headers[":authority"] ?? headers.host ?? "");
}

/** Whether a request over HTTP/1.1 names its host more than once (RFC 9112, 3.2), of which Node.js takes the first. */
export function hasTwoHosts({ rawHeaders }: HttpRequest): boolean {
  const isHost = (text: string, i: number) => i % 2 === 0 && /^host$/i.test(text);
  return rawHeaders.findIndex(isHost) !== rawHeaders.findLastIndex(isHost);
}

/**
 * Checks whether a request comes from a web page that must not call. A service that listens on
 * loopback and needs no credentials is open to every page in a local browser, directly or under a
 * name that was rebound to this machine (DNS rebinding).
 *
 * @param hosts the hosts that requests may name
 * @param corsOrigins the origins whose pages may call, or `*` for any
 * @returns why the request is rejected, or undefined if it is allowed
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
 * Lets web pages of the given origins read the response, and replies to preflight requests
 * (https://fetch.spec.whatwg.org/#http-cors-protocol).
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
    "access-control-allow-methods": "GET, HEAD, POST",
    // A call can carry any header, such as those of tracing.
    "access-control-allow-headers": req.headers["access-control-request-headers"] ?? "",
    "access-control-max-age": maxAgeSeconds,
  });
  return true;
}
