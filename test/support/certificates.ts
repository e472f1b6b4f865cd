import { once } from "node:events";
import { writeFileSync } from "node:fs";
import type { IncomingMessage } from "node:http";
import { get, type RequestOptions } from "node:https";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { createCA, createCert } from "mkcert";

const made = new Map<string, ReturnType<typeof createCA>>();

/** The authority of a name, which no other process knows. */
export async function createAuthority(organization = "Example") {
  const place = { countryCode: "GB", state: "London", locality: "London" };
  const making = made.get(organization) ?? createCA({ organization, ...place, validity: 1 });
  made.set(organization, making);
  const ca = await making;
  return {
    /** Its own certificate, in PEM. */
    ca: ca.cert,
    /** Signs a certificate whose subject has this common name, valid for a day or that many. */
    sign: (name: string, days = 1) =>
      createCert({ ca, domains: [name, "localhost", "127.0.0.1"], validity: days }),
  };
}

type Authority = Awaited<ReturnType<typeof createAuthority>>;

/** Writes the files of a server on TLS into a folder, as its environment names them. */
export async function writeServerFiles(folder: string, authority: Authority, name = "server") {
  const { cert, key } = await authority.sign(name);
  const write = (file: string, text: string) => {
    writeFileSync(join(folder, file), text);
    return join(folder, file);
  };
  return { TLS_CERT: write("server.crt", cert), TLS_KEY: write("server.key", key) };
}

/** The same, as flags of the command line name them. */
export async function writeServerFlags(...files: Parameters<typeof writeServerFiles>) {
  const { TLS_CERT, TLS_KEY } = await writeServerFiles(...files);
  return { "--tls-cert": TLS_CERT, "--tls-key": TLS_KEY };
}

/** The body of a GET over TLS from a service on this machine, by a client that names no protocol. */
export async function getOverTls(
  { port }: { port: number },
  path: string,
  options: RequestOptions,
): Promise<string> {
  const request = get(`https://localhost:${port}${path}`, { ...options, agent: false });
  const [response]: IncomingMessage[] = await once(request, "response");
  return response ? text(response) : "";
}
