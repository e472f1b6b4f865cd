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

/** An issuer of access tokens, as OpenID Connect Discovery has it. */
export interface Issuer {
  readonly url: string;
  /** What it replies with by path: a document, or a status alone. */
  readonly replies: Record<string, object | number>;
  /** Whether it replies so, and not always with 500. */
  isAvailable: boolean;
  /** Signs a token that is good for the audience `investors`, with these changes. */
  sign(changes?: Claims, header?: Header): Promise<string>;
  /** Signs with another key from now on, and publishes only that. */
  rotate(): Promise<void>;
  /** Holds all replies back until the result is called. */
  hold(): () => void;
  /** How many requests it has had, and how many of these were for its keys. */
  requests(): number;
  keyRequests(): number;
}

export const metadataPath = "/.well-known/openid-configuration";
export const keysPath = "/keys";

/** Starts an issuer on this machine. */
export async function startIssuer(): Promise<Issuer> {
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

  const issuer: Issuer = {
    url,
    replies: { [metadataPath]: { issuer: url, jwks_uri: url + keysPath } },
    isAvailable: true,
    sign(changes = {}, header = {}) {
      const now = Math.floor(Date.now() / 1_000);
      const claims = { iss: url, aud: "investors", sub: "backend", iat: now, exp: now + 600 };
      return new SignJWT({ ...claims, ...changes } as JWTPayload)
        .setProtectedHeader({
          alg: "ES256",
          kid: String(serial),
          ...header,
        } as JWTHeaderParameters)
        .sign(key, { crit: Object.fromEntries((header.crit ?? []).map((name) => [name, true])) });
    },
    async rotate() {
      const { privateKey, publicKey } = await generateKeyPair("ES256");
      key = privateKey;
      serial += 1;
      const published = { ...(await exportJWK(publicKey)), kid: String(serial), alg: "ES256" };
      issuer.replies[keysPath] = { keys: [published] };
    },
    hold() {
      const { promise, resolve } = Promise.withResolvers<void>();
      held = promise;
      return resolve;
    },
    requests: () => requests.length,
    keyRequests: () => requests.filter((path) => path === keysPath).length,
  };
  await issuer.rotate();
  return issuer;
}
