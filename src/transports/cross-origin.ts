import type { IncomingMessage } from "node:http";

const thisMachine = new Set(["localhost", "127.0.0.1", "[::1]"]);

/**
 * Tells whether a request comes from a web page that has no business here. A service that
 * listens on this machine alone and asks for no credentials is open to every page in its
 * browser, directly or under a name that was bound to this machine (DNS rebinding).
 *
 * @param corsOrigins the origins whose pages may call, or `*` for any
 * @returns what gives it away, or undefined if nothing does
 */
export function findCrossOrigin(req: IncomingMessage, corsOrigins: string[]): string | undefined {
  const { origin, "sec-fetch-site": site } = req.headers;
  const host = req.headers.host ?? String(req.headers[":authority"] ?? "");
  if (!thisMachine.has(host.replace(/:\d+$/, "").toLowerCase())) {
    return "the Host of the request is not localhost, 127.0.0.1 or [::1]";
  }
  if (origin === undefined) {
    return site === "cross-site" ? "the request comes from a page of another site" : undefined;
  }
  const isKnown =
    corsOrigins.includes("*") ||
    corsOrigins.includes(origin) ||
    origin.replace(/^https?:\/\//, "") === host;
  return isKnown ? undefined : "the Origin of the request is not one of --cors-origin";
}
