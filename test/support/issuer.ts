import { createServer } from "node:http";
import {
  exportJWK,
  generateKeyPair,
  type JWTHeaderParameters,
  type JWTPayload,
  SignJWT,
} from "jose";
import { listen } from "./tcp.ts";

/** Claims of a token and its header; undefined leaves one out. */
type Claims = { [Name in keyof JWTPayload]: JWTPayload[Name] | undefined };
type Header = { crit?: string[]; [name: string]: unknown };

export type Issuer = Awaited<ReturnType<typeof startIssuer>>;

export const metadataPath = "/.well-known/openid-configuration";
export const keysPath = "/keys";

/** Starts an issuer of access tokens on this machine, as OpenID Connect Discovery has it. */
export async function startIssuer() {
  const requests: string[] = [];
  let held = Promise.resolve();
  const server = createServer(async ({ url = "" }, res) => {
    requests.push(url);
    await held;
    const reply = issuer.isAvailable ? (issuer.replies[url] ?? 404) : 500;
    if (typeof reply === "number") res.writeHead(reply, { location: "/elsewhere" }).end();
    else res.end(JSON.stringify(reply));
  });
  const url = `http://127.0.0.1:${await listen(server)}`;
  let key: CryptoKey;
  let serial = 0;
  const replies: Record<string, object | number> = {
    [metadataPath]: { issuer: url, jwks_uri: url + keysPath },
  };

  const issuer = {
    url,
    /** What it replies with by path: a document, or a status alone. */
    replies,
    /** Whether it replies so, and not always with 500. */
    isAvailable: true,
    /** Signs a token that is good for the audience `investors`, with these changes. */
    sign(changes: Claims = {}, header: Header = {}): Promise<string> {
      const now = Math.floor(Date.now() / 1_000);
      const claims = { iss: url, aud: "investors", sub: "backend", iat: now, exp: now + 600 };
      const protectedHeader = { alg: "ES256", kid: String(serial), ...header };
      return new SignJWT({ ...claims, ...changes } as JWTPayload)
        .setProtectedHeader(protectedHeader as JWTHeaderParameters)
        .sign(key, { crit: Object.fromEntries((header.crit ?? []).map((name) => [name, true])) });
    },
    /** Signs with another key from now on, and publishes only that. */
    async rotate(): Promise<void> {
      const { privateKey, publicKey } = await generateKeyPair("ES256");
      key = privateKey;
      serial += 1;
      const published = { ...(await exportJWK(publicKey)), kid: String(serial), alg: "ES256" };
      replies[keysPath] = { keys: [published] };
    },
    /** Holds all replies back until the result is called. */
    hold(): () => void {
      const { promise, resolve } = Promise.withResolvers<void>();
      held = promise;
      return resolve;
    },
    /** How many requests it has had, and how many of these were for its keys. */
    requests: () => requests.length,
    keyRequests: () => requests.filter((path) => path === keysPath).length,
  };
  await issuer.rotate();
  return issuer;
}
