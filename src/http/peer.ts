import { X509Certificate } from "node:crypto";
import type { Socket } from "node:net";
import type { TLSSocket } from "node:tls";

/** The other side of a connection. */
export interface Peer {
  /** Its address and port, that of IPv6 in brackets (RFC 3986, 3.2.2). */
  readonly address: string;
  /** What its certificate says; absent if it showed none. */
  readonly certificate?: PeerCertificate;
}

export interface PeerCertificate {
  /** Its subject or, where that is empty, its alternative names; undefined if these name nobody. */
  readonly holder: string | undefined;
  /** From when and until when it is valid, in milliseconds of Unix time. */
  readonly validFrom: number;
  readonly validTo: number;
  /** Until when it counts as signed by a CA of this service, in milliseconds of Unix time. */
  trustedUntil: number;
}

export function describePeer(socket: Socket): Peer {
  const { remoteAddress: host = "", remotePort } = socket;
  const address = `${host.includes(":") ? `[${host}]` : host}:${remotePort}`;
  const { authorized, getPeerCertificate } = socket as Partial<TLSSocket>;
  // getPeerX509Certificate() never frees the rest of the chain.
  const raw = getPeerCertificate?.call(socket)?.raw;
  if (raw === undefined) return { address };
  const x509 = new X509Certificate(raw);
  const certificate = {
    holder: holderOf(x509),
    validFrom: x509.validFromDate.getTime(),
    validTo: x509.validToDate.getTime(),
    trustedUntil: authorized === true ? Infinity : 0,
  };
  return { address, certificate };
}

/** The name in a certificate, as text that no other name has (RFC 5280, 4.1.2.6). */
function holderOf(x509: X509Certificate): string | undefined {
  const isNamed = (text = "") => /[=:][^\n+,]/.test(text);
  try {
    const { subject, subjectAltName } = x509;
    if (isNamed(subject)) return subject;
    // Node.js shows all names of an unknown form, and all addresses of a wrong length, the same.
    const isClear = isNamed(subjectAltName) && !/<(unsupported|invalid)/.test(subjectAltName ?? "");
    return isClear ? subjectAltName : undefined;
  } catch {
    // It throws if there are no names in the list of these, or no list.
    return undefined;
  }
}
