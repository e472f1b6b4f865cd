import { ConnectError } from "@connectrpc/connect";
import {
  createLocalJWKSet,
  createRemoteJWKSet,
  customFetch,
  errors,
  type FetchImplementation,
  type JSONWebKeySet,
  type JWTHeaderParameters,
  type JWTPayload,
  type JWTVerifyGetKey,
  jwtVerify,
} from "jose";
import { issuerUnavailable, overloaded } from "../errors.ts";
import { limits } from "../limits.ts";
import type { OidcOptions } from "../settings/config.ts";
import { isSecureUrl } from "../settings/values.ts";
import { type Caller, InvalidCredentialsError, scopeNames } from "./caller.ts";

/** How long a verified token is cached, in milliseconds, and how many are. */
const rememberedMs = 60_000;
const maxRemembered = 10_000;

/** How far the issuer's clock may be ahead, in seconds. */
const clockTolerance = 30;

/** Asymmetric signature algorithms, so that only the issuer can sign (RFC 7518, RFC 8037). */
const algorithms = [
  ...["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"],
  ...["ES256", "ES384", "ES512", "EdDSA", "Ed25519"],
];

/**
 * Creates a function that verifies an access token, passed with its digest, and returns its caller.
 * The token must come from the issuer, for the audience, and be unexpired. Accepts RFC 9068 tokens,
 * and those that common issuers use instead.
 *
 * @param onWarning called when the issuer's keys can no longer be fetched
 * @throws {InvalidCredentialsError} the token is not valid
 * @throws {ConnectError} ISSUER_UNAVAILABLE, if the token's key cannot be fetched now; OVERLOADED,
 * if too many tokens are being checked
 */
export function createOidcVerifier(
  { issuer, audience }: OidcOptions,
  onWarning: (message: string) => void,
) {
  const findKey = createIssuerKeys(issuer, onWarning);
  const remembered = new Map<string, { caller: Caller; expiresAt: number; until: number }>();
  let checks = 0;

  async function check(token: string, digest: string): Promise<Caller> {
    const options = { issuer, audience, algorithms, clockTolerance };
    const { payload, protectedHeader } = await jwtVerify(token, findKey, options);
    const { sub, exp = 0 } = payload;
    const expiresAt = exp * 1_000;
    if (typeof sub !== "string" || sub === "" || !sub.isWellFormed()) {
      throw new InvalidCredentialsError("the token has no subject");
    }
    if (expiresAt <= Date.now()) throw new InvalidCredentialsError("the token has expired");
    if (!isAccessToken(protectedHeader, payload)) {
      throw new InvalidCredentialsError("the token is not an access token");
    }
    const principal = `oidc ${issuer} ${sub}`;
    const caller = { principal, name: principal, scopes: scopesOf(payload) };
    const [oldest = ""] = remembered.keys();
    if (remembered.size >= maxRemembered) remembered.delete(oldest);
    // Monotonic, so that it surely expires: the issuer may have dropped the key.
    remembered.set(digest, { caller, expiresAt, until: performance.now() + rememberedMs });
    return caller;
  }

  return async (token: string, digest: string): Promise<Caller> => {
    const known = remembered.get(digest);
    const isRemembered = known !== undefined && performance.now() < known.until;
    if (isRemembered && Date.now() < known.expiresAt) return known.caller;
    if (checks >= limits.tokenChecks) throw overloaded("checks of credentials");
    checks += 1;
    try {
      return await check(token, digest);
    } catch (error) {
      if (error instanceof errors.JOSEError) throw new InvalidCredentialsError(faultOf(error));
      const isKnown = error instanceof ConnectError || error instanceof InvalidCredentialsError;
      if (isKnown) throw error;
      // A bad key of the issuer, such as RSA with 1,024 bits, is not the caller's mistake.
      const fault = `a key of the issuer cannot be used: ${(error as Error).message}`;
      throw issuerUnavailable(new InvalidCredentialsError(fault));
    } finally {
      checks -= 1;
    }
  };
}

/** Says what is wrong with a token. The error's own message may repeat its content. */
function faultOf({ code, claim = "" }: errors.JOSEError & { claim?: string }): string {
  return `${code} ${claim}`.trimEnd();
}

/**
 * Whether a token is an access token: by its type (RFC 9068, 2.1) or, where the issuer sets no such
 * type, by its claims about its use and the absence of claims that only other tokens have.
 */
function isAccessToken({ typ = "JWT" }: JWTHeaderParameters, claims: JWTPayload): boolean {
  const type = typeof typ === "string" ? typ.toLowerCase() : "";
  if (type === "at+jwt" || type === "application/at+jwt") return true;
  if (type !== "jwt" && type !== "application/jwt") return false;
  // Claims of Amazon Cognito and Keycloak.
  const use = claims.token_use ?? claims.typ;
  if (use !== undefined) return ["access", "Bearer", "DPoP"].some((each) => each === use);
  // Claims of ID tokens (OpenID Connect Core 1.0, 2 and 3.3.2.11), logout tokens and other events.
  return !["nonce", "at_hash", "c_hash", "events"].some((name) => Object.hasOwn(claims, name));
}

/** The scopes of a token, as a list or separated by spaces, under the names that issuers use. */
function scopesOf({ scope, scp, roles }: JWTPayload): Set<string> {
  const granted = [scope, scp, roles]
    .flat()
    .flatMap((each) => (typeof each === "string" ? each.split(" ") : []));
  return new Set(scopeNames.filter((name) => granted.includes(name)));
}

/** The largest reply of the issuer, unpacked, in bytes. */
const maxReplyBytes = 1024 * 1024;

/** The age at which the issuer's keys are fetched again, in milliseconds. */
const refreshMs = 10 * 60_000;

/**
 * Minimum interval of fetches, in milliseconds: short enough to find a new key soon, long enough
 * that tokens with unknown keys cannot flood the issuer.
 */
const cooldownMs = 1_000;

/**
 * Finds the keys of an issuer (OpenID Connect Discovery 1.0, RFC 7517). Fetches them for the first
 * token, every ten minutes while tokens arrive, and when a token names an unknown key.
 *
 * @returns a function that throws a JOSEError if the issuer has no such key, or ISSUER_UNAVAILABLE
 * if it cannot be asked now
 */
function createIssuerKeys(issuer: string, onWarning: (message: string) => void): JWTVerifyGetKey {
  const metadataUrl = `${issuer.replace(/\/$/, "")}/.well-known/openid-configuration`;
  let triedAt = Number.NEGATIVE_INFINITY;
  let failure: unknown;

  const fetchKeys: FetchImplementation = async (url, init) => {
    if (failure && performance.now() - triedAt < cooldownMs) throw failure;
    triedAt = performance.now();
    try {
      const metadata = (await fetchJson(url, init)) as Record<string, unknown> | null;
      if (metadata?.issuer !== issuer) {
        const other = JSON.stringify(metadata?.issuer)?.slice(0, 256);
        throw new Error(`${url} names another issuer: ${other}`);
      }
      const keysUrl = metadata.jwks_uri;
      if (typeof keysUrl !== "string" || !isSecureUrl(keysUrl)) {
        throw new Error(`the jwks_uri of ${url} is not an https URL`);
      }
      const keys = (await fetchJson(keysUrl, init)) as JSONWebKeySet;
      // Throws if it is not a key set.
      createLocalJWKSet(keys);
      failure = undefined;
      return Response.json(keys);
    } catch (error) {
      const { message, cause = message } = error as Error;
      if (!failure) onWarning(`the keys of --oidc-issuer ${issuer} cannot be fetched: ${cause}`);
      failure = error;
      throw error;
    }
  };

  const keys = createRemoteJWKSet(new URL(metadataUrl), {
    [customFetch]: fetchKeys,
    // While the issuer is down, its last keys are used for a day.
    cacheMaxAge: 24 * 60 * 60_000,
    // Replaced by our cooldown: jose's uses the wall clock, which would block fetches if set back.
    cooldownDuration: Infinity,
    timeoutDuration: 5_000,
  });

  return async (header, token) => {
    const currentKeys = keys.fresh && keys.reloading ? keys.jwks() : undefined;
    try {
      // No wait while a slow issuer is asked: waiting tokens would use up the checks of all others.
      if (currentKeys) return await createLocalJWKSet(currentKeys)(header, token);
      if (keys.fresh && performance.now() - triedAt > refreshMs) {
        await keys.reload().catch(() => {});
      }
      return await keys(header, token).catch(async (error) => {
        const isNew = error instanceof errors.JWKSNoMatchingKey;
        if (!isNew || performance.now() - triedAt < cooldownMs) throw error;
        await keys.reload();
        return keys(header, token);
      });
    } catch (error) {
      const isOfToken =
        (error instanceof errors.JWKSNoMatchingKey && !currentKeys) ||
        error instanceof errors.JWKSMultipleMatchingKeys ||
        error instanceof errors.JOSENotSupported;
      throw isOfToken ? error : issuerUnavailable(error);
    }
  };
}

async function fetchJson(url: string, init: RequestInit): Promise<unknown> {
  const response = await fetch(url, init);
  if (response.status !== 200) {
    // An unread body would keep the connection open.
    await response.body?.cancel();
    throw new Error(`${url} replied with ${response.status}`);
  }
  const parts: Uint8Array[] = [];
  let bytes = 0;
  // Throwing here closes the connection too.
  for await (const part of response.body ?? []) {
    bytes += part.length;
    if (bytes > maxReplyBytes) throw new Error(`${url} replied with more than 1 MiB`);
    parts.push(part);
  }
  return JSON.parse(Buffer.concat(parts).toString());
}
