import { constants, X509Certificate } from "node:crypto";
import { createSecureContext, createServer, type SecureContextOptions } from "node:tls";
import { ConfigError } from "../config-error.ts";
import { limits } from "../limits.ts";
import { useFiles } from "../settings/reloaded-files.ts";

/** Files in PEM. */
export interface TlsFiles {
  certFile: string;
  keyFile: string;
  /** Absent if clients need no certificate. */
  clientCaFile?: string | undefined;
}

export type Tls = Awaited<ReturnType<typeof readTls>>;

/**
 * Creates a TLS server, which does not listen itself, and reads its keys and certificates, which can be
 * replaced while it runs.
 *
 * @returns it, when the certificate expires, and how to learn that the client CAs have changed
 * @param onWarning called after each read if the certificate has expired
 * @throws {ConfigError} a file cannot be read or used
 */
export async function readTls(files: TlsFiles, onWarning: (message: string) => void) {
  const { certFile, keyFile, clientCaFile } = files;
  const server = createServer({
    handshakeTimeout: limits.beginMs,
    ALPNProtocols: ["h2", "http/1.1"],
    // A client without a certificate can still send a token, or ask for health.
    requestCert: clientCaFile !== undefined,
    rejectUnauthorized: false,
  });
  let context: SecureContextOptions = {};
  let noteNewCas = () => {};
  const expiresAt = () => new X509Certificate(context.cert as Buffer).validToDate;
  const warnIfExpired = () => {
    const date = expiresAt();
    if (date.getTime() < Date.now()) {
      onWarning(`${certFile} expired at ${date.toISOString()}: clients will refuse it`);
    }
  };
  const paths: [flag: string, path: string][] = [
    ["--tls-cert", certFile],
    ["--tls-key", keyFile],
  ];
  if (clientCaFile !== undefined) paths.push(["--tls-client-ca", clientCaFile]);
  /** For new connections; if the files cannot be used, nothing changes. */
  const reload = await useFiles(paths, (contents) => {
    const { ca } = context;
    context = toContext(files, contents);
    server.setSecureContext(context);
    if (String(context.ca) !== String(ca)) noteNewCas();
    warnIfExpired();
  });
  const onNewCas = (listener: () => void) => {
    noteNewCas = listener;
  };
  return { server, expiresAt, onNewCas, reload };
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
function toContext(files: TlsFiles, [cert, key, ca]: Buffer[]): SecureContextOptions {
  const { certFile, keyFile, clientCaFile } = files;
  const context: SecureContextOptions = {
    minVersion: "TLSv1.2",
    ciphers,
    ecdhCurve: groups,
    cert,
    key,
  };
  check(`--tls-cert ${certFile} is not a usable certificate in PEM`, () =>
    createSecureContext({ cert }),
  );
  check(`--tls-key ${keyFile} is not a usable private key in PEM without a passphrase`, () =>
    createSecureContext({ key }),
  );
  if (clientCaFile !== undefined) {
    // No session resumption, which would keep the earlier certificate and its verification result.
    context.secureOptions = constants.SSL_OP_NO_TICKET;
    context.ca = ca;
    // Checked here, since Node.js skips blocks that are not certificates.
    const blocks = String(ca).match(/-----BEGIN .*?(?=-----BEGIN |$)/gs) ?? [""];
    check(`--tls-client-ca ${clientCaFile} is not a certificate in PEM`, () =>
      blocks.map((each) => new X509Certificate(each)),
    );
  }
  check(`--tls-key ${keyFile} is not the key of --tls-cert ${certFile}`, () =>
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
