import { ConnectError } from "@connectrpc/connect";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { InvalidCredentialsError } from "../../src/calls/caller.ts";
import { createOidcVerifier } from "../../src/calls/oidc.ts";
import { digestOf } from "../../src/calls/tokens-file.ts";
import { failureOf } from "../support/errors.ts";
import { type Issuer, startIssuer } from "../support/issuer.ts";

const minuteMs = 60_000;

/** Who has a token, by a verifier of the tokens of an issuer; undefined if it is refused. */
type Verify = (token: string) => Promise<string | undefined>;

async function start(issuer?: Issuer) {
  const used = issuer ?? (await startIssuer());
  const warnings: string[] = [];
  const options = { issuer: used.url, audience: "investors" };
  const verifier = createOidcVerifier(options, (message) => warnings.push(message));
  const verify: Verify = async (token) => {
    try {
      return (await verifier(token, digestOf(token))).principal;
    } catch (error) {
      if (error instanceof InvalidCredentialsError) return undefined;
      throw error;
    }
  };
  return { issuer: used, verifier, verify, warnings, good: `oidc ${used.url} backend` };
}

const unavailable = { code: "Unavailable", reason: "ISSUER_UNAVAILABLE" };

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["performance", "Date"] });
});

afterEach(() => {
  vi.useRealTimers();
});

describe("a token of the issuer", () => {
  it("is verified once a minute, however often it is shown", async () => {
    const { issuer, verify, good } = await start();
    const token = await issuer.sign();
    // The keys are fetched meanwhile.
    await verify(token);
    const checks = vi.spyOn(crypto.subtle, "verify");
    for (let i = 0; i < 100; i += 1) expect(await verify(token)).toBe(good);
    expect(checks).toHaveBeenCalledTimes(1);
    vi.advanceTimersByTime(minuteMs + 1);
    expect(await verify(token)).toBe(good);
    expect(checks).toHaveBeenCalledTimes(2);
    const other = token.replace(/.{4}$/, "AAAA");
    expect(await verify(other)).toBe(undefined);
    expect(checks).toHaveBeenCalledTimes(3);
  });

  it("is refused from its expiry on, also if it was verified just before", async () => {
    const { issuer, verify, good } = await start();
    const token = await issuer.sign({ exp: Math.floor(Date.now() / 1_000) + 20 });
    for (let i = 0; i < 3; i += 1) expect(await verify(token)).toBe(good);
    vi.setSystemTime(Date.now() + 20_000);
    expect(await verify(token)).toBe(undefined);
  });

  it("may come from an issuer whose clock is half a minute ahead, and no more", async () => {
    const { issuer, verify, good } = await start();
    const now = Math.floor(Date.now() / 1_000);
    expect(await verify(await issuer.sign({ nbf: now + 25 }))).toBe(good);
    expect(await verify(await issuer.sign({ nbf: now + 60 }))).toBe(undefined);
  });

  it("is forgotten as soon as its key has left", async () => {
    const { issuer, verify, good } = await start();
    const token = await issuer.sign();
    for (let i = 0; i < 3; i += 1) expect(await verify(token)).toBe(good);
    await issuer.rotate();
    vi.advanceTimersByTime(2_000);
    expect(await verify(await issuer.sign())).toBe(good);
    expect(await verify(token)).toBe(undefined);
  });

  it.each<[string, Parameters<Issuer["sign"]>[0], Parameters<Issuer["sign"]>[1]]>([
    ["of no type", {}, {}],
    ["of the type of RFC 9068", { nonce: "n" }, { typ: "at+JWT" }],
    ["of that type, in full", {}, { typ: "application/at+jwt" }],
    ["of the type JWT", {}, { typ: "JWT" }],
    ["of Keycloak", { typ: "Bearer", nonce: "n" }, { typ: "JWT" }],
    ["of Amazon Cognito", { token_use: "access" }, {}],
  ])("is an access token: %s", async (_, claims, header) => {
    const { issuer, verify, good } = await start();
    expect(await verify(await issuer.sign(claims, header))).toBe(good);
  });

  it.each<[string, Parameters<Issuer["sign"]>[0], Parameters<Issuer["sign"]>[1]]>([
    ["an ID token by its nonce", { nonce: "n" }, {}],
    ["an ID token by the hash of an access token", { at_hash: "x" }, { typ: "JWT" }],
    ["an ID token by the hash of a code", { c_hash: "x" }, {}],
    ["an ID token of Keycloak", { typ: "ID" }, { typ: "JWT" }],
    ["a refresh token of Keycloak", { typ: "Refresh" }, { typ: "JWT" }],
    ["an ID token of Amazon Cognito", { token_use: "id" }, {}],
    ["a logout token", {}, { typ: "logout+jwt" }],
    ["a logout token without a type", { events: {} }, {}],
    ["a proof of DPoP", {}, { typ: "dpop+jwt" }],
    ["an assertion of a client", {}, { typ: "client-authentication+jwt" }],
    ["of a type that is no text", {}, { typ: { toString: 1 } as unknown as string }],
    ["of a use that is no text", { token_use: { toString: 1 } }, {}],
    ["without a subject", { sub: undefined }, {}],
    ["of an empty subject", { sub: "" }, {}],
    ["of a subject that is a number", { sub: 1 as unknown as string }, {}],
    ["of a subject that is an object", { sub: { toString: 1 } as unknown as string }, {}],
    ["of a subject that is a list", { sub: ["x"] as unknown as string }, {}],
    ["of a subject that is no text", { sub: "\ud800" }, {}],
    ["with an expiry that is text", { exp: "9999999999" as unknown as number }, {}],
    ["without an expiry", { exp: undefined }, {}],
    ["with an extension that nobody knows", {}, { crit: ["x"], x: 1 }],
  ])("is refused: %s", async (_, claims, header) => {
    const { issuer, verify } = await start();
    const token = await issuer.sign(claims, header);
    expect(await verify(token)).toBe(undefined);
  });

  it.each<[string, Parameters<Issuer["sign"]>[0], Parameters<Issuer["sign"]>[1]]>([
    ["ERR_JWT_CLAIM_VALIDATION_FAILED aud", { aud: "orders" }, {}],
    ["ERR_JWT_CLAIM_VALIDATION_FAILED iss", { iss: "https://secret.example" }, {}],
    ["ERR_JWT_EXPIRED exp", { exp: 1 }, {}],
    ["ERR_JOSE_NOT_SUPPORTED", {}, { crit: ["secret"], secret: 1 }],
    ["the token has no subject", { sub: "" }, {}],
    ["the token is not an access token", { nonce: "secret" }, {}],
  ])("is refused for a cause that repeats nothing of it: %s", async (cause, claims, header) => {
    const { issuer, verifier } = await start();
    const token = await issuer.sign(claims, header);
    await expect(verifier(token, digestOf(token))).rejects.toThrow(
      new InvalidCredentialsError(cause),
    );
  });

  it.each<[string, Parameters<Issuer["sign"]>[0], string[]]>([
    ["scope as text", { scope: "openid investors:read" }, ["investors:read"]],
    ["scope as a list", { scope: ["investors:write"] }, ["investors:write"]],
    [
      "scp as text",
      { scp: "investors:read investors:write" },
      ["investors:read", "investors:write"],
    ],
    ["scp as a list", { scp: ["email", "investors:read"] }, ["investors:read"]],
    [
      "both",
      { scope: "investors:read", scp: ["investors:write"] },
      ["investors:read", "investors:write"],
    ],
    ["neither", {}, []],
    ["something else", { scope: 1, scp: { toString: 1 } }, []],
    ["parts of a name", { scope: "investors:rea d investors:read2" }, []],
  ])("has its scopes by %s", async (_, claims, scopes) => {
    const { issuer, verifier } = await start();
    const token = await issuer.sign(claims);
    expect([...(await verifier(token, digestOf(token))).scopes]).toEqual(scopes);
  });
});

describe("the keys of the issuer", () => {
  it("serve for a day while it is down, and not longer", async () => {
    const { issuer, verify, warnings, good } = await start();
    const sign = () => issuer.sign({ exp: Math.floor(Date.now() / 1_000) + 600 });
    expect(await verify(await sign())).toBe(good);
    issuer.setAvailable(false);
    for (let hours = 0; hours < 23.5; hours += 0.5) {
      vi.advanceTimersByTime(30 * minuteMs);
      expect(await verify(await sign()), `after ${hours} hours`).toBe(good);
    }
    expect(warnings.length).toBe(1);
    expect(warnings[0]).toContain("replied with 500");
    vi.advanceTimersByTime(31 * minuteMs);
    expect(await failureOf(verify(await sign()))).toMatchObject(unavailable);
    issuer.setAvailable(true);
    vi.advanceTimersByTime(2_000);
    expect(await verify(await sign())).toBe(good);
  });

  it("are fetched again after ten minutes, so that one that has left serves no more", async () => {
    const { issuer, verify, good } = await start();
    const token = await issuer.sign({ exp: Math.floor(Date.now() / 1_000) + 7_200 });
    expect(await verify(token)).toBe(good);
    await issuer.rotate();
    vi.advanceTimersByTime(9 * minuteMs);
    expect(await verify(token)).toBe(good);
    vi.advanceTimersByTime(22 * minuteMs);
    expect(await verify(token)).toBe(undefined);
    expect(issuer.keyRequests()).toBe(2);
  });

  it("refuse at once a token that names another one, while they are being fetched", async () => {
    const { issuer, verify, good } = await start();
    const known = await issuer.sign({ jti: "1" });
    expect(await verify(known)).toBe(good);
    vi.advanceTimersByTime(2_000);
    const release = issuer.hold();
    const first = verify(await issuer.sign({}, { kid: "other" }));
    await vi.waitFor(() => expect(issuer.requestsHeld()).toBe(1));
    const others = Array.from({ length: 1_000 }, async (_, i) =>
      failureOf(verify(await issuer.sign({}, { kid: `other ${i}` }))),
    );
    for (const failure of await Promise.all(others)) expect(failure).toMatchObject(unavailable);
    expect(await verify(await issuer.sign({ jti: "2" }))).toBe(good);
    expect(issuer.requestsHeld()).toBe(1);
    release();
    expect(await first).toBe(undefined);
    expect(await verify(await issuer.sign({}, { kid: "other" }))).toBe(undefined);
    expect(issuer.keyRequests()).toBe(2);
  });

  it("let 256 tokens wait for the first of them, and no more", async () => {
    const { issuer, verify, good } = await start();
    const release = issuer.hold();
    const tokens = await Promise.all(
      Array.from({ length: 300 }, (_, i) => issuer.sign({ jti: `${i}` })),
    );
    const outcomes = tokens.map((token) =>
      verify(token).catch((error) => ConnectError.from(error).rawMessage),
    );
    const refused = await Promise.all(outcomes.slice(256));
    expect(new Set(refused)).toEqual(new Set(["too many calls at once; repeat it later"]));
    release();
    expect(new Set(await Promise.all(outcomes.slice(0, 256)))).toEqual(new Set([good]));
    expect(await verify(await issuer.sign())).toBe(good);
  });

  it.each([
    ["by http from another machine", { keysHost: "0.0.0.0" }, "is no https URL"],
    ["by a redirect", { redirects: ["/keys"] }, "redirect"],
    [
      "by a redirect of the metadata",
      { redirects: ["/.well-known/openid-configuration"] },
      "redirect",
    ],
  ])("are not fetched %s", async (_, options, told) => {
    const { issuer, verify, warnings } = await start(await startIssuer(options));
    expect(await failureOf(verify(await issuer.sign()))).toMatchObject(unavailable);
    expect(warnings.join()).toContain(told);
    expect(issuer.keyRequests()).toBe(0);
  });
});
