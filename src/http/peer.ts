import { X509Certificate } from "node:crypto";
import type { Socket } from "node:net";
import type { TLSSocket } from "node:tls";

export interface Peer {
  /** Address and port; IPv6 in brackets (RFC 3986, 3.2.2). */
  readonly address: string;
  /** Absent if it presented no certificate. */
  readonly certificate?: PeerCertificate;
}

export interface PeerCertificate {
  /** The subject or, if empty, the alternative names; undefined if neither names anybody. */
  readonly holder: string | undefined;
  /** Validity, in Unix milliseconds. */
  readonly validFrom: number;
  readonly validTo: number;
  /** Whether one of our CAs has signed it. */
  readonly isTrusted: boolean;
}

export function describePeer(socket: Socket): Peer {
  const { remoteAddress = "", remotePort } = socket;
  // IPv4 on a socket of both families (RFC 4291, 2.5.5.2).
  const host = remoteAddress.replace(/^::ffff:/, "");
  const address = `${host.includes(":") ? `[${host}]` : host}:${remotePort}`;
  const { authorized, getPeerCertificate } = socket as Partial<TLSSocket>;
  // getPeerX509Certificate() never frees the rest of the chain.
  const raw = getPeerCertificate?.call(socket)?.raw;
  if (raw === undefined) return { address };
  // As PEM: in bytes, OpenSSL would look first for the PEM of a certificate, which an extension can hold.
  const base64 = raw.toString("base64");
  const x509 = new X509Certificate(
    `-----BEGIN CERTIFICATE-----\n${base64}\n-----END CERTIFICATE-----`,
  );
  const certificate = {
    holder: holderOf(x509),
    validFrom: x509.validFromDate.getTime(),
    validTo: x509.validToDate.getTime(),
    isTrusted: authorized === true,
  };
  return { address, certificate };
}

/** The name in a certificate, as text that is unambiguous (RFC 5280, 4.1.2.6). */
function holderOf(x509: X509Certificate): string | undefined {
  const isNamed = (text: string) => /[=:][^\n+,]/.test(text);
  try {
    const { subject = "", subjectAltName = "" } = x509;
    if (isNamed(subject)) return subject;
    // Node.js renders all names of unknown form, and all addresses of wrong length, alike.
    const isClear = isNamed(subjectAltName) && !/<(unsupported|invalid)/.test(subjectAltName);
    return isClear ? subjectAltName : undefined;
  } catch {
    // Node.js throws if the list of alternative names is empty or missing.
    return undefined;
  }
}
