import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { type Certificate, createCA, createCert } from "mkcert";

/** An authority that signs certificates, and the files of a server that it has signed for. */
export interface Authority {
  /** Its own certificate, in PEM. */
  readonly ca: string;
  /** Signs a certificate whose subject has this common name. */
  sign(name: string): Promise<Certificate>;
}

/** Makes an authority that nobody else knows. */
export async function createAuthority(organization = "Example"): Promise<Authority> {
  const ca = await createCA({
    organization,
    countryCode: "GB",
    state: "London",
    locality: "London",
    validity: 1,
  });
  return {
    ca: ca.cert,
    sign: (name) => createCert({ ca, domains: [name, "localhost", "127.0.0.1"], validity: 1 }),
  };
}

/** Writes the files of a server on TLS into a folder, as its environment names them. */
export async function writeServerFiles(folder: string, authority: Authority, name = "server") {
  const { cert, key } = await authority.sign(name);
  const write = (file: string, text: string) => {
    writeFileSync(join(folder, file), text);
    return join(folder, file);
  };
  return { TLS_CERT: write("server.crt", cert), TLS_KEY: write("server.key", key) };
}
