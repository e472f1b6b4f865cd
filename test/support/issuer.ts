import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import {
  exportJWK,
  generateKeyPair,
  type JWK,
  type JWTHeaderParameters,
  type JWTPayload,
  SignJWT,
} from "jose";
import { onTestFinished } from "vitest";

/** Claims of a token; undefined leaves one out. */
type Claims = { [Name in keyof JWTPayload]: JWTPayload[Name] | undefined };

/** An issuer of access tokens, as OpenID Connect Discovery has it. */
export interface Issuer {
  readonly url: string;
  /** Signs a token that is good for the audience `investors`, with these changes. */
  sign(changes?: Claims, header?: Partial<JWTHeaderParameters>): Promise<string>;
  /** Signs with another key from now on, and publishes only that. */
  rotate(): Promise<void>;
  /** Answers no request from now on, or does again. */
  setAvailable(isAvailable: boolean): void;
  /** Holds all replies back until the result is called. */
  hold(): () => void;
  /** How many requests are held back. */
  requestsHeld(): number;
  /** How many requests it has answered, and how many of these were for its keys. */
  requests(): number;
  keyRequests(): number;
}

/** How an issuer differs from one that keeps the rules. */
interface IssuerOptions {
  /** The host in the address of its keys. */
  keysHost?: string;
  /** Paths whose requests it redirects elsewhere. */
  redirects?: string[];
  /** The issuer that its metadata name. */
  issuer?: string;
  /** What it publishes as its keys. */
  keys?: unknown;
}

/** Starts an issuer on this machine. */
export async function startIssuer(options: IssuerOptions = {}): Promise<Issuer> {
  const { keysHost = "127.0.0.1", redirects = [] } = options;
  let key: Awaited<ReturnType<typeof generateKeyPair>>["privateKey"];
  let published: JWK;
  let serial = 0;
  let isAvailable = true;
  let requests = 0;
  let keyRequests = 0;
  let requestsHeld = 0;
  let held = Promise.resolve();

  async function rotate(): Promise<void> {
    serial += 1;
    const pair = await generateKeyPair("ES256");
    key = pair.privateKey;
    published = { ...(await exportJWK(pair.publicKey)), kid: String(serial), alg: "ES256" };
  }

  await rotate();
  const server = createServer(async (req, res) => {
    requests += 1;
    requestsHeld += 1;
    await held;
    requestsHeld -= 1;
    const documents: Record<string, () => unknown> = {
      "/.well-known/openid-configuration": () => {
        return {
          issuer: options.issuer ?? url,
          jwks_uri: `${url.replace("127.0.0.1", keysHost)}/keys`,
        };
      },
      "/keys": () => {
        keyRequests += 1;
        return options.keys ?? { keys: [published] };
      },
    };
    const path = req.url ?? "";
    if (redirects.includes(path)) {
      res.writeHead(302, { location: `${path}?redirected` }).end();
      return;
    }
    const document = documents[path.replace("?redirected", "")];
    res.writeHead(isAvailable && document ? 200 : 500, { "content-type": "application/json" });
    res.end(JSON.stringify(isAvailable && document ? document() : {}));
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;

  return {
    url,
    sign(changes = {}, header = {}) {
      const now = Math.floor(Date.now() / 1_000);
      const claims = { iss: url, aud: "investors", sub: "backend", iat: now, exp: now + 600 };
      return new SignJWT({ ...claims, ...changes } as JWTPayload)
        .setProtectedHeader({ alg: "ES256", kid: String(serial), ...header })
        .sign(key, { crit: Object.fromEntries((header.crit ?? []).map((name) => [name, true])) });
    },
    rotate,
    setAvailable(value) {
      isAvailable = value;
    },
    hold() {
      const { promise, resolve } = Promise.withResolvers<void>();
      held = promise;
      return resolve;
    },
    requestsHeld: () => requestsHeld,
    requests: () => requests,
    keyRequests: () => keyRequests,
  };
}
