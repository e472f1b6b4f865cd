import { X509Certificate } from "node:crypto";
import type { Socket } from "node:net";
import type { TLSSocket } from "node:tls";
import { peerAddressOf } from "../http/request.ts";

/** What a caller can be allowed to do. */
export const scopeNames = ["investors:read", "investors:write"] as const;

/** One of {@link scopeNames}. */
export type Scope = (typeof scopeNames)[number];

/** All of them. */
export const allScopes: ReadonlySet<string> = new Set(scopeNames);

/** Who calls, and what for. */
export interface Caller {
  /** A name that no two callers share, however they authenticate. */
  readonly principal: string;
  /** Its name in the log, which is no secret. */
  readonly name: string;
  /** What it may do. */
  readonly scopes: ReadonlySet<string>;
}

/** Why credentials are not valid: for the log, and nothing of what they contain. */
export class InvalidCredentialsError extends Error {}

/** The other side of a connection. */
export interface Peer {
  /** Its address and port. */
  readonly address: string;
  /** What its certificate says; absent if it showed none. */
  readonly certificate?: {
    /** Its subject or, where that is empty, its alternative names; undefined if it has neither. */
    readonly holder: string | undefined;
    /** Whether a CA of this service had signed it when the connection began. */
    readonly isTrusted: boolean;
    /** From when and until when it is valid, in milliseconds of Unix time. */
    readonly validFrom: number;
    readonly validTo: number;
  };
}

/** Creates a function that describes the peer of a connection, once for each. */
export function createPeerLookup(): (socket: Socket) => Peer {
  const known = new WeakMap<Socket, Peer>();
  return (socket) => {
    const peer = known.get(socket) ?? describe(socket);
    known.set(socket, peer);
    return peer;
  };
}

function describe(socket: Socket): Peer {
  const address = peerAddressOf(socket);
  const { authorized, getPeerCertificate } = socket as Partial<TLSSocket>;
  // getPeerX509Certificate() never frees the rest of the chain.
  const raw = getPeerCertificate?.call(socket)?.raw;
  if (raw === undefined) return { address };
  const x509 = new X509Certificate(raw);
  const certificate = {
    holder: holderOf(x509),
    isTrusted: authorized === true,
    validFrom: x509.validFromDate.getTime(),
    validTo: x509.validToDate.getTime(),
  };
  return { address, certificate };
}

/** The name in a certificate, which no other name looks like (RFC 5280, 4.1.2.6). */
function holderOf({ subject, subjectAltName }: X509Certificate): string | undefined {
  if (subject) return subject;
  // OpenSSL shows all names of an unknown form the same.
  return subjectAltName?.includes("<unsupported>") ? undefined : subjectAltName;
}
