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
import type { OidcOptions } from "../settings/config.ts";
import { isSecureUrl } from "../settings/values.ts";
import { type Caller, InvalidCredentialsError, scopeNames } from "./caller.ts";

/** How many tokens may be checked at once, each of which can wait for the issuer. */
const maxChecks = 256;

/** How long a verified token is remembered, in milliseconds, and how many tokens are. */
const rememberedMs = 60_000;
const maxRemembered = 10_000;

/** By how much the clock of the issuer may be ahead, in seconds. */
const clockTolerance = 30;

/** The algorithms of signatures that only the issuer can make (RFC 7518, RFC 8037). */
const algorithms = [
  ...["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"],
  ...["ES256", "ES384", "ES512", "EdDSA", "Ed25519"],
];

/**
 * Creates a function that verifies an access token, passed with its digest, and returns its caller.
 * The token must be from the issuer, for the audience and not expired (RFC 9068, or what others
 * issue).
 *
 * @param onWarning called when the keys of the issuer cannot be fetched any more
 * @throws {InvalidCredentialsError} the token is not valid
 * @throws {ConnectError} ISSUER_UNAVAILABLE, if the key of the token cannot be had now;
 *   OVERLOADED, if too many tokens are being checked
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
    // By a clock that is never set back: the issuer may have dropped its key.
    remembered.set(digest, { caller, expiresAt, until: performance.now() + rememberedMs });
    return caller;
  }

  return async (token: string, digest: string): Promise<Caller> => {
    const known = remembered.get(digest);
    const isRemembered = known !== undefined && performance.now() < known.until;
    if (isRemembered && Date.now() < known.expiresAt) return known.caller;
    if (checks >= maxChecks) throw overloaded("checks of credentials");
    checks += 1;
    try {
      return await check(token, digest);
    } catch (error) {
      if (error instanceof errors.JOSEError) throw new InvalidCredentialsError(faultOf(error));
      const isKnown = error instanceof ConnectError || error instanceof InvalidCredentialsError;
      if (isKnown) throw error;
      // A fault in a key of the issuer, such as RSA with 1,024 bits, is no mistake of the caller.
      const fault = `a key of the issuer cannot be used: ${(error as Error).message}`;
      throw issuerUnavailable(new InvalidCredentialsError(fault));
    } finally {
      checks -= 1;
    }
  };
}

/** What is wrong with a token. The message of the error may repeat what is in it. */
function faultOf({ code, claim = "" }: errors.JOSEError & { claim?: string }): string {
  return `${code} ${claim}`.trimEnd();
}

/**
 * Whether a token is for calls: by its type (RFC 9068, 2.1) or, where the issuer has none for
 * access tokens, by what it says of its use and by claims that only other tokens have.
 */
function isAccessToken({ typ = "JWT" }: JWTHeaderParameters, claims: JWTPayload): boolean {
  const type = typeof typ === "string" ? typ.toLowerCase() : "";
  if (type === "at+jwt" || type === "application/at+jwt") return true;
  if (type !== "jwt" && type !== "application/jwt") return false;
  // Of Amazon Cognito and of Keycloak.
  const use = claims.token_use ?? claims.typ;
  if (use !== undefined) return ["access", "Bearer", "DPoP"].some((each) => each === use);
  // Of ID tokens (OpenID Connect Core 1.0, 2 and 3.3.2.11) and of logout tokens and other events.
  return !["nonce", "at_hash", "c_hash", "events"].some((name) => Object.hasOwn(claims, name));
}

/** What a token allows, in a list or separated by spaces, under the names that issuers use. */
function scopesOf({ scope, scp, roles }: JWTPayload): Set<string> {
  const granted = [scope, scp, roles]
    .flat()
    .flatMap((each) => (typeof each === "string" ? each.split(" ") : []));
  return new Set(scopeNames.filter((name) => granted.includes(name)));
}

/** The most that the issuer may reply with, unpacked, in bytes. */
const maxReplyBytes = 1024 * 1024;

/** The age at which the keys of the issuer are fetched again, in milliseconds. */
const refreshMs = 10 * 60_000;

/**
 * The least time between two fetches, in milliseconds: short enough to find a new key soon, and long
 * enough that tokens which name unknown keys cannot flood the issuer.
 */
const cooldownMs = 1_000;

/**
 * Finds the keys of an issuer (OpenID Connect Discovery 1.0, RFC 7517). They are fetched when the
 * first token comes, every ten minutes while tokens come, and when a token names a new one.
 *
 * @returns a function that throws a JOSEError if the issuer has no such key, and
 *   ISSUER_UNAVAILABLE if that cannot be found out now
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
        throw new Error(`${url} is of another issuer: ${other}`);
      }
      const keysUrl = metadata.jwks_uri;
      if (typeof keysUrl !== "string" || !isSecureUrl(keysUrl)) {
        throw new Error(`the jwks_uri of ${url} is no https URL`);
      }
      const keys = (await fetchJson(keysUrl, init)) as JSONWebKeySet;
      // Throws if it is none.
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
    // While the issuer is down, its last keys serve for a day.
    cacheMaxAge: 24 * 60 * 60_000,
    // The clock can be set back, and would forbid fetches meanwhile: see below.
    cooldownDuration: Infinity,
    timeoutDuration: 5_000,
  });

  return async (header, token) => {
    const known = keys.fresh && keys.reloading ? keys.jwks() : undefined;
    try {
      // Tokens that wait for a slow issuer would use up the checks of all others.
      if (known) return await createLocalJWKSet(known)(header, token);
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
        (error instanceof errors.JWKSNoMatchingKey && !known) ||
        error instanceof errors.JWKSMultipleMatchingKeys ||
        error instanceof errors.JOSENotSupported;
      throw isOfToken ? error : issuerUnavailable(error);
    }
  };
}

async function fetchJson(url: string, init: RequestInit): Promise<unknown> {
  const response = await fetch(url, init);
  if (response.status !== 200) {
    // An unread body would keep the connection.
    await response.body?.cancel();
    throw new Error(`${url} replied with ${response.status}`);
  }
  const parts: Uint8Array[] = [];
  let bytes = 0;
  // What throws ends the connection, too.
  for await (const part of response.body ?? []) {
    bytes += part.length;
    if (bytes > maxReplyBytes) throw new Error(`${url} replied with more than 1 MiB`);
    parts.push(part);
  }
  return JSON.parse(Buffer.concat(parts).toString());
}
