import { constants, X509Certificate } from "node:crypto";
import { createSecureContext, createServer, type SecureContextOptions } from "node:tls";
import { ConfigError } from "../config-error.ts";
import { limits } from "../limits.ts";
import type { Config } from "../settings/config.ts";
import { useFiles } from "../settings/reloaded-files.ts";

export type TlsSettings = Pick<Config, "tlsCert" | "tlsKey" | "tlsClientCa">;

export type Tls = NonNullable<Awaited<ReturnType<typeof readTls>>>;

/**
 * Creates a TLS server, which does not listen itself, and reads its keys and certificates, which can be
 * replaced while it runs. Undefined without them.
 *
 * @param onWarning called after each read if the certificate has expired
 * @param onNewCas called when the client CAs have changed
 * @throws {ConfigError} a file cannot be read or used
 */
export async function readTls(
  settings: TlsSettings,
  onWarning: (message: string) => void,
  onNewCas: () => void,
) {
  const { tlsCert, tlsKey, tlsClientCa } = settings;
  if (tlsCert === undefined || tlsKey === undefined) return undefined;
  const server = createServer({
    handshakeTimeout: limits.beginMs,
    ALPNProtocols: ["h2", "http/1.1"],
    // A client without a certificate can still send a token, or ask for health.
    requestCert: tlsClientCa !== undefined,
    rejectUnauthorized: false,
  });
  let context: SecureContextOptions = {};
  const expiresAt = () => new X509Certificate(context.cert as Buffer).validToDate;
  const paths: [flag: string, path: string][] = [
    ["--tls-cert", tlsCert],
    ["--tls-key", tlsKey],
  ];
  if (tlsClientCa !== undefined) paths.push(["--tls-client-ca", tlsClientCa]);
  /** For new connections; if the files cannot be used, nothing changes. */
  const reload = await useFiles(paths, (contents) => {
    const { ca } = context;
    context = toContext(settings, contents);
    server.setSecureContext(context);
    if (ca !== undefined && String(context.ca) !== String(ca)) onNewCas();
    const end = expiresAt();
    if (end.getTime() >= Date.now()) return;
    onWarning(`${tlsCert} expired at ${end.toISOString()}: clients will refuse it`);
  });
  return { server, expiresAt, reload };
}

/** Ciphers with forward secrecy and authenticated encryption (RFC 9325, 4.2). */
const ciphers = [
  "TLS_AES_256_GCM_SHA384",
  "TLS_CHACHA20_POLY1305_SHA256",
  "TLS_AES_128_GCM_SHA256",
  "ECDHE+AESGCM",
  "ECDHE+CHACHA20",
].join(":");

/** Key exchange groups, without slow ones such as P-521, which take milliseconds. */
const groups = "X25519MLKEM768:X25519:P-256:P-384";

/** @throws {ConfigError} a file cannot be used */
function toContext(settings: TlsSettings, [cert, key, ca]: Buffer[]): SecureContextOptions {
  const { tlsCert, tlsKey, tlsClientCa } = settings;
  const context: SecureContextOptions = {
    minVersion: "TLSv1.2",
    ciphers,
    ecdhCurve: groups,
    cert,
    key,
  };
  check(`--tls-cert ${tlsCert} is not a usable certificate in PEM`, () =>
    createSecureContext({ cert }),
  );
  check(`--tls-key ${tlsKey} is not a usable private key in PEM without a passphrase`, () =>
    createSecureContext({ key }),
  );
  if (tlsClientCa !== undefined) {
    // No session resumption, which would keep the earlier certificate and its verification result.
    context.secureOptions = constants.SSL_OP_NO_TICKET;
    context.ca = ca;
    // Checked here, since Node.js skips blocks that are not certificates.
    const blocks = String(ca).match(/-----BEGIN .*?(?=-----BEGIN |$)/gs) ?? [""];
    check(`--tls-client-ca ${tlsClientCa} is not a certificate in PEM`, () =>
      blocks.map((each) => new X509Certificate(each)),
    );
  }
  check(`--tls-key ${tlsKey} is not the key of --tls-cert ${tlsCert}`, () =>
    createSecureContext(context),
  );
  return context;
}

function check(fault: string, use: () => unknown): void {
  try {
    use();
  } catch (error) {
    // For example ERR_SSL_EE_KEY_TOO_SMALL for RSA with 1,024 bits.
    throw new ConfigError(`${fault} (${(error as NodeJS.ErrnoException).code})`);
  }
}
