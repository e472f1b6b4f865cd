import { generateKeyPairSync } from "node:crypto";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { InvalidCredentialsError } from "../src/auth/caller.ts";
import { createOidcVerifier } from "../src/auth/oidc.ts";
import { digestOf } from "../src/auth/tokens-file.ts";
import { failureOf } from "./support/errors.ts";
import { type Issuer, keysPath, metadataPath, startIssuer } from "./support/issuer.ts";
import { startInProcess } from "./support/server.ts";
import { ask } from "./support/service.ts";

type Claims = Parameters<Issuer["sign"]>[0];
type Header = Parameters<Issuer["sign"]>[1];

const minuteMs = 60_000;
const overloaded = { code: "Unavailable", reason: "OVERLOADED" };
const unavailable = { code: "Unavailable", reason: "ISSUER_UNAVAILABLE" };

/** @param change changes the issuer before it is first asked */
async function start(change: (issuer: Issuer) => void = () => {}) {
  const issuer = await startIssuer();
  change(issuer);
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

const toBase64 = (part: object) => Buffer.from(JSON.stringify(part)).toString("base64url");
const inSeconds = (seconds: number) => Math.floor(Date.now() / 1_000) + seconds;

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["performance", "Date", "setInterval", "clearInterval"] });
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
    for (const token of [
      await other.sign({ iss: issuer.url }),
      `${toBase64({ alg: "none" })}.${payload}.`,
      `${toBase64({ alg: "HS256" })}.${payload}.${signature}`,
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

  const [read, write] = ["investors:read", "investors:write"];
  it.each<[string, Claims, string[]]>([
    ["scope as text", { scope: `openid ${read}` }, [read]],
    ["scope as a list", { scope: [write] }, [write]],
    ["scp as a list", { scp: ["email", read] }, [read]],
    ["roles as text", { roles: write }, [write]],
    ["roles as a list", { roles: [read, write] }, [read, write]],
    ["none", {}, []],
    ["something else", { scope: 1, scp: { toString: 1 }, roles: [null, 1] }, []],
    ["parts of a name", { scope: "investors:rea d investors:read2" }, []],
  ])("has its scopes by %s", async (_, claims, scopes) => {
    const { issuer, verifier } = await start();
    const caller = await verifier(await issuer.sign(claims));
    expect([...caller.scopes]).toEqual(scopes);
  });
});

describe("the keys of the issuer", () => {
  it("that are too weak are named in the log", async () => {
    const issuer = await startIssuer();
    const { publicKey } = generateKeyPairSync("rsa", { modulusLength: 1_024 });
    issuer.replies[keysPath] = { keys: [{ ...publicKey.export({ format: "jwk" }), kid: "0" }] };
    const flags = { "--oidc-issuer": issuer.url, "--oidc-audience": "investors" };
    const { port, lines } = await startInProcess(flags);
    const parts = [{ alg: "RS256", kid: "0" }, { iss: issuer.url }, {}].map(toBase64);
    const headers = { authorization: `Bearer ${parts.join(".")}` };
    await ask({ port }, "/v1/investors", { headers });
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
    await expect.poll(() => isNewTokenValid().catch(() => false)).toBe(true);
  });

  it.each([0, 60])(
    "are fetched every ten minutes, and a withdrawn one ends within eleven, with the clock set back by %i",
    async (minutes) => {
      const { issuer, isValid } = await start();
      const token = await issuer.sign({ exp: inSeconds(7_200) });
      expect(await isValid(await issuer.sign())).toBe(true);
      await issuer.rotate();
      vi.setSystemTime(Date.now() - minutes * minuteMs);
      vi.advanceTimersByTime(10 * minuteMs - 1);
      // It is remembered for a minute.
      expect(await isValid(token)).toBe(true);
      vi.advanceTimersByTime(1);
      await expect.poll(issuer.keyRequests).toBe(2);
      expect(await isValid(await issuer.sign())).toBe(true);
      expect(issuer.keyRequests()).toBe(2);
      vi.advanceTimersByTime(minuteMs);
      expect(await isValid(token)).toBe(false);
    },
  );

  it("are fetched again for a token that names another, at most once a second", async () => {
    const { issuer, isValid } = await start();
    expect(await isValid(await issuer.sign())).toBe(true);
    await issuer.rotate();
    const signing = Array.from({ length: 10 }, (_, i) => issuer.sign({ jti: String(i) }));
    const isEachValid = await Promise.all((await Promise.all(signing)).map(isValid));
    expect(isEachValid).toEqual(Array(10).fill(true));
    const isOtherValid = async (i: number) => isValid(await issuer.sign({}, { kid: `other ${i}` }));
    for (let i = 0; i < 10; i += 1) expect(await isOtherValid(i)).toBe(false);
    expect(issuer.keyRequests()).toBe(2);
    vi.advanceTimersByTime(1_000);
    for (let i = 0; i < 10; i += 1) expect(await isOtherValid(i)).toBe(false);
    expect(issuer.keyRequests()).toBe(3);
  });

  it("that are new are taken at once after the clock was set back", async () => {
    const { issuer, isValid } = await start();
    expect(await isValid(await issuer.sign())).toBe(true);
    vi.setSystemTime(Date.now() - 60 * minuteMs);
    await issuer.rotate();
    expect(await isValid(await issuer.sign())).toBe(true);
    expect(issuer.keyRequests()).toBe(2);
  });

  it("are found where the metadata says now", async () => {
    const { issuer, isValid } = await start();
    expect(await isValid(await issuer.sign())).toBe(true);
    await issuer.rotate();
    issuer.replies["/moved"] = issuer.replies[keysPath] as object;
    issuer.replies[keysPath] = 404;
    issuer.replies[metadataPath] = { issuer: issuer.url, jwks_uri: `${issuer.url}/moved` };
    expect(await isValid(await issuer.sign())).toBe(true);
  });

  it("are asked for at most once a second while that fails", async () => {
    const { issuer, isValid, warnings } = await start((issuer) => {
      issuer.isAvailable = false;
    });
    await expect.poll(() => warnings).toHaveLength(1);
    for (let i = 0; i < 10; i += 1) {
      expect(await failureOf(isValid(await issuer.sign()))).toMatchObject(unavailable);
    }
    expect(issuer.requests()).toBe(2);
    expect(warnings).toHaveLength(1);
    issuer.isAvailable = true;
    vi.advanceTimersByTime(1_000);
    expect(await isValid(await issuer.sign())).toBe(true);
  });

  it("are waited for by 256 tokens that name others, and by one after a failure; others go on", async () => {
    const { issuer, isValid } = await start();
    expect(await isValid(await issuer.sign())).toBe(true);
    // Before, since a fetch of keys is given up soon.
    const signing = Array.from({ length: 300 }, (_, i) => issuer.sign({}, { kid: `other ${i}` }));
    const others = await Promise.all(signing);
    const known = [await issuer.sign({ jti: "2" }), await issuer.sign({}, { kid: undefined })];

    const release = issuer.hold();
    const waiting = others.slice(0, 256).map((token) => failureOf(isValid(token)));
    for (const token of others.slice(256)) {
      expect(await failureOf(isValid(token))).toMatchObject(overloaded);
    }
    for (const token of known) expect(await isValid(token)).toBe(true);
    issuer.isAvailable = false;
    release();
    for (const each of waiting) expect(await each).toMatchObject(unavailable);

    vi.advanceTimersByTime(1_000);
    issuer.isAvailable = true;
    const releaseNext = issuer.hold();
    const [first = "", ...rest] = others;
    const checking = isValid(first);
    for (const token of rest) {
      expect(await failureOf(isValid(token))).toMatchObject(unavailable);
    }
    releaseNext();
    expect(await checking).toBe(false);
    expect(issuer.keyRequests()).toBe(2);
  });

  it.each<[warning: string, path: string, reply: object | number]>([
    ["Expected 200 OK from the JSON Web Key Set", keysPath, 302],
    ["openid-configuration replied with 302", metadataPath, 302],
    ['names another issuer: "https://i.example"', metadataPath, { issuer: "https://i.example" }],
    // By http, they would have to come from this machine.
    ["is not an https URL", metadataPath, { jwks_uri: "http://0.0.0.0/keys" }],
    ["JSON Web Key Set malformed", keysPath, {}],
  ])("are not taken if that would be wrong: %s", async (warning, path, reply) => {
    const { issuer, isValid, warnings } = await start(({ url, replies }) => {
      replies[path] = typeof reply === "object" ? { issuer: url, ...reply } : reply;
    });
    expect(await failureOf(isValid(await issuer.sign()))).toMatchObject(unavailable);
    expect(warnings).toEqual([expect.stringContaining(warning)]);
  });
});
