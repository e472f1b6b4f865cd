import type { Exchange } from "./exchange.ts";

/** The hosts of a service that listens on this machine alone, as requests name them. */
export function hostsOf(host: string): ReadonlySet<string> {
  return new Set(["localhost", "127.0.0.1", "[::1]", host.includes(":") ? `[${host}]` : host]);
}

/**
 * Tells whether a request comes from a web page that has no business here. A service that
 * listens on this machine alone and asks for no credentials is open to every page in its
 * browser, directly or under a name that was bound to this machine (DNS rebinding).
 *
 * @param hosts the hosts that requests may name
 * @param corsOrigins the origins whose pages may call, or `*` for any
 * @returns why the request is refused, or undefined if it is not
 */
export function findCrossOrigin(
  { headers, authority }: Exchange,
  hosts: ReadonlySet<string>,
  corsOrigins: string[],
): string | undefined {
  const { origin, "sec-fetch-site": site } = headers;
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
