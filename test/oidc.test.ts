import { generateKeyPairSync } from "node:crypto";
import type { ServerResponse } from "node:http";
import { Readable } from "node:stream";
import { gzipSync } from "node:zlib";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { InvalidCredentialsError } from "../src/auth/caller.ts";
import { createOidcVerifier } from "../src/auth/oidc.ts";
import { digestOf } from "../src/auth/tokens-file.ts";
import { failureOf } from "./support/errors.ts";
import { type Issuer, keysPath, metadataPath, startIssuer } from "./support/issuer.ts";
import { startInProcess } from "./support/server.ts";

type Claims = Parameters<Issuer["sign"]>[0];
type Header = Parameters<Issuer["sign"]>[1];

const minuteMs = 60_000;
const unavailable = { code: "Unavailable", reason: "ISSUER_UNAVAILABLE" };

async function start() {
  const issuer = await startIssuer();
  const warnings: string[] = [];
  const options = { issuer: issuer.url, audience: "investors" };
  const verify = createOidcVerifier(options, (message) => warnings.push(message));
  const verifier = (token: string) => verify(token, digestOf(token));
  const isValid = (token: string) =>
    verifier(token).then(
      () => true,
      (error) => {
        if (error instanceof InvalidCredentialsError) return false;
        throw error;
      },
    );
  return { issuer, verifier, isValid, warnings };
}

const inSeconds = (seconds: number) => Math.floor(Date.now() / 1_000) + seconds;

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["performance", "Date"] });
});

afterEach(() => {
  vi.useRealTimers();
});

describe("a token of the issuer", () => {
  it("is the credential of its subject until it expires, also if it was just verified", async () => {
    const { issuer, verifier, isValid } = await start();
    const token = await issuer.sign({ exp: inSeconds(20) });
    for (let i = 0; i < 3; i += 1) {
      expect(await verifier(token)).toMatchObject({ principal: `oidc ${issuer.url} backend` });
    }
    vi.setSystemTime(Date.now() + 20_000);
    expect(await isValid(token)).toBe(false);
  });

  it("may come from an issuer whose clock is half a minute ahead, and no more", async () => {
    const { issuer, isValid } = await start();
    expect(await isValid(await issuer.sign({ nbf: inSeconds(25) }))).toBe(true);
    expect(await isValid(await issuer.sign({ nbf: inSeconds(60) }))).toBe(false);
  });

  it.each<[string, boolean, Claims, Header]>([
    ["of no type", true, {}, {}],
    ["of the type of RFC 9068", true, { nonce: "n" }, { typ: "at+JWT" }],
    ["of that type, in full", true, {}, { typ: "application/at+jwt" }],
    ["of Keycloak", true, { typ: "Bearer", nonce: "n" }, { typ: "JWT" }],
    ["of Amazon Cognito", true, { token_use: "access" }, {}],
    ["an ID token by its nonce", false, { nonce: "n" }, {}],
    ["an ID token by the hash of an access token", false, { at_hash: "x" }, { typ: "JWT" }],
    ["an ID token of Keycloak", false, { typ: "ID" }, { typ: "JWT" }],
    ["a refresh token of Keycloak", false, { typ: "Refresh" }, { typ: "JWT" }],
    ["an ID token of Amazon Cognito", false, { token_use: "id" }, {}],
    ["a logout token without a type", false, { events: {} }, {}],
    ["a proof of DPoP", false, {}, { typ: "dpop+jwt" }],
    ["of a type that is no text", false, {}, { typ: { toString: 1 } as unknown as string }],
    ["of a use that is no text", false, { token_use: { toString: 1 } }, {}],
    ["without a subject", false, { sub: undefined }, {}],
    ["of a subject that is an object", false, { sub: { toString: 1 } as unknown as string }, {}],
    ["of a subject with an unpaired surrogate", false, { sub: "\ud800" }, {}],
    ["without an audience", false, { aud: undefined }, {}],
    ["with an expiry that is text", false, { exp: "9999999999" as unknown as number }, {}],
    ["without an expiry", false, { exp: undefined }, {}],
  ])("is an access token or not: %s, %s", async (_, isAccessToken, claims, header) => {
    const { issuer, isValid } = await start();
    expect(await isValid(await issuer.sign(claims, header))).toBe(isAccessToken);
  });

  it("is refused unless the issuer signed it", async () => {
    const { issuer, isValid } = await start();
    const other = await startIssuer();
    const [, payload, signature] = (await issuer.sign()).split(".");
    const header = (alg: string) => Buffer.from(JSON.stringify({ alg })).toString("base64url");
    for (const token of [
      await other.sign({ iss: issuer.url }),
      `${header("none")}.${payload}.`,
      `${header("HS256")}.${payload}.${signature}`,
      "a.b.c",
    ]) {
      expect(await isValid(token), token).toBe(false);
    }
  });

  it.each<[string, Claims, Header]>([
    ["ERR_JWT_CLAIM_VALIDATION_FAILED aud", { aud: "orders" }, {}],
    ["ERR_JWT_CLAIM_VALIDATION_FAILED iss", { iss: "https://secret.example" }, {}],
    ["ERR_JWT_EXPIRED exp", { exp: 1 }, {}],
    ["ERR_JOSE_NOT_SUPPORTED", {}, { crit: ["secret"], secret: 1 }],
    ["the token is not an access token", { nonce: "secret" }, {}],
  ])("is refused for a cause that repeats nothing of it: %s", async (cause, claims, header) => {
    const { issuer, verifier } = await start();
    const token = await issuer.sign(claims, header);
    await expect(verifier(token)).rejects.toThrow(new InvalidCredentialsError(cause));
  });

  it.each<[string, Claims, string[]]>([
    ["scope as text", { scope: "openid investors:read" }, ["investors:read"]],
    ["scope as a list", { scope: ["investors:write"] }, ["investors:write"]],
    ["scp as a list", { scp: ["email", "investors:read"] }, ["investors:read"]],
    ["roles as text", { roles: "investors:write" }, ["investors:write"]],
    [
      "roles as a list",
      { roles: ["investors:read", "investors:write"] },
      ["investors:read", "investors:write"],
    ],
    ["none", {}, []],
    ["something else", { scope: 1, scp: { toString: 1 }, roles: [null, 1] }, []],
    ["parts of a name", { scope: "investors:rea d investors:read2" }, []],
  ])("has its scopes by %s", async (_, claims, scopes) => {
    const { issuer, verifier } = await start();
    const caller = await verifier(await issuer.sign(claims));
    expect([...(caller.scopes ?? [])]).toEqual(scopes);
  });
});

describe("the keys of the issuer", () => {
  it("that are too weak are named in the log", async () => {
    const issuer = await startIssuer();
    const { publicKey } = generateKeyPairSync("rsa", { modulusLength: 1_024 });
    issuer.replies[keysPath] = { keys: [{ ...publicKey.export({ format: "jwk" }), kid: "0" }] };
    const flags = { "--oidc-issuer": issuer.url, "--oidc-audience": "investors" };
    const { httpPort, lines } = await startInProcess(flags);
    const parts = [{ alg: "RS256", kid: "0" }, { iss: issuer.url }, {}];
    const token = parts.map((part) => Buffer.from(JSON.stringify(part)).toString("base64url"));
    const headers = { authorization: `Bearer ${token.join(".")}` };
    await fetch(`http://127.0.0.1:${httpPort}/v1/investors`, { headers });
    const cause = expect.stringMatching(/^a key of the issuer cannot be used: .*2048 bits/);
    const refusal = expect.objectContaining({ reason: "ISSUER_UNAVAILABLE", cause });
    await expect.poll(() => lines).toContainEqual(refusal);
  });

  it("serve for a day while it is down, and not longer", async () => {
    const { issuer, isValid, warnings } = await start();
    const isNewTokenValid = async () => isValid(await issuer.sign({ exp: inSeconds(600) }));
    expect(await isNewTokenValid()).toBe(true);
    issuer.isAvailable = false;
    for (let hours = 0; hours < 23.5; hours += 0.5) {
      vi.advanceTimersByTime(30 * minuteMs);
      expect(await isNewTokenValid(), `after ${hours} hours`).toBe(true);
    }
    expect(warnings).toEqual([expect.stringContaining("replied with 500")]);
    vi.advanceTimersByTime(31 * minuteMs);
    expect(await failureOf(isNewTokenValid())).toMatchObject(unavailable);
    issuer.isAvailable = true;
    vi.advanceTimersByTime(2_000);
    expect(await isNewTokenValid()).toBe(true);
  });

  it.each([0, 60])(
    "are fetched again after ten minutes, and a withdrawn one is refused, with the clock set back by %i",
    async (minutes) => {
      const { issuer, isValid } = await start();
      const token = await issuer.sign({ exp: inSeconds(7_200) });
      expect(await isValid(token)).toBe(true);
      await issuer.rotate();
      vi.setSystemTime(Date.now() - minutes * minuteMs);
      vi.advanceTimersByTime(9 * minuteMs);
      expect(await isValid(token)).toBe(true);
      vi.advanceTimersByTime(2 * minuteMs);
      expect(await isValid(token)).toBe(false);
      expect(issuer.keyRequests()).toBe(2);
    },
  );

  it("are fetched again for a token that names another, at most once a second", async () => {
    const { issuer, isValid } = await start();
    const before = await issuer.sign({ exp: inSeconds(600) });
    expect(await isValid(before)).toBe(true);
    await issuer.rotate();
    vi.advanceTimersByTime(2_000);
    expect(await isValid(await issuer.sign())).toBe(true);
    for (let i = 0; i < 10; i += 1) {
      expect(await isValid(await issuer.sign({}, { kid: `other ${i}` }))).toBe(false);
    }
    expect(issuer.keyRequests()).toBe(2);
    // A token that was verified is remembered for a minute.
    vi.advanceTimersByTime(minuteMs);
    expect(await isValid(before)).toBe(false);
  });

  it("that are new are taken at once after the clock was set back", async () => {
    const { issuer, isValid } = await start();
    expect(await isValid(await issuer.sign())).toBe(true);
    vi.setSystemTime(Date.now() - 60 * minuteMs);
    vi.advanceTimersByTime(2_000);
    await issuer.rotate();
    expect(await isValid(await issuer.sign())).toBe(true);
    expect(issuer.keyRequests()).toBe(2);
  });

  it("are asked for at most once a second while that fails", async () => {
    const { issuer, isValid, warnings } = await start();
    issuer.isAvailable = false;
    for (let i = 0; i < 10; i += 1) {
      expect(await failureOf(isValid(await issuer.sign()))).toMatchObject(unavailable);
    }
    expect(issuer.requests()).toBe(1);
    expect(warnings).toHaveLength(1);
    issuer.isAvailable = true;
    vi.advanceTimersByTime(1_000);
    expect(await isValid(await issuer.sign())).toBe(true);
  });

  it("refuse at once a token that names another, while they are being fetched", async () => {
    const { issuer, isValid } = await start();
    expect(await isValid(await issuer.sign({ jti: "1" }))).toBe(true);
    vi.advanceTimersByTime(2_000);
    // Before, since a fetch of keys is given up soon; more than may be checked at once.
    const signing = Array.from({ length: 300 }, (_, i) => issuer.sign({}, { kid: `other ${i}` }));
    const [other = "", ...others] = await Promise.all(signing);
    const known = [await issuer.sign({ jti: "2" }), await issuer.sign({}, { kid: undefined })];
    const release = issuer.hold();
    const first = isValid(other);
    await expect.poll(() => issuer.requests()).toBe(3);
    for (const token of others) {
      expect(await failureOf(isValid(token))).toMatchObject(unavailable);
    }
    for (const token of known) expect(await isValid(token)).toBe(true);
    expect(issuer.requests()).toBe(3);
    release();
    expect(await first).toBe(false);
    expect(issuer.keyRequests()).toBe(2);
  });

  it.each<[warning: string, path: string, reply: object | number]>([
    ["/keys replied with 302", keysPath, 302],
    ["openid-configuration replied with 302", metadataPath, 302],
    ['names another issuer: "https://i.example"', metadataPath, { issuer: "https://i.example" }],
    // By http, they would have to come from this machine.
    ["is not an https URL", metadataPath, { jwks_uri: "http://0.0.0.0/keys" }],
    ["JSON Web Key Set malformed", keysPath, {}],
  ])("are not taken if that would be wrong: %s", async (warning, path, reply) => {
    const { issuer, isValid, warnings } = await start();
    const isDocument = typeof reply === "object";
    issuer.replies[path] = isDocument ? { issuer: issuer.url, ...reply } : reply;
    expect(await failureOf(isValid(await issuer.sign()))).toMatchObject(unavailable);
    expect(warnings).toEqual([expect.stringContaining(warning)]);
  });

  const packed = gzipSync(Buffer.alloc(64 * 1024 * 1024, " "));

  it.each<[string, string, (res: ServerResponse) => void]>([
    ["metadata without end", metadataPath, replyEndlessly],
    ["keys without end", keysPath, replyEndlessly],
    [
      "keys that are large once they are unpacked",
      keysPath,
      (res) => res.writeHead(200, { "content-encoding": "gzip" }).end(packed),
    ],
  ])("are not taken from %s", async (_, path, reply) => {
    const { issuer, isValid, warnings } = await start();
    issuer.replies[path] = reply;
    expect(await failureOf(isValid(await issuer.sign()))).toMatchObject(unavailable);
    expect(warnings).toEqual([expect.stringContaining(`${path} replied with more than 1 MiB`)]);
  });
});

/** Writes until the other side has closed the connection. */
function replyEndlessly(res: ServerResponse): void {
  Readable.from(repeat(Buffer.alloc(65_536, " "))).pipe(res);
}

function* repeat<T>(value: T): Generator<T> {
  for (;;) yield value;
}
