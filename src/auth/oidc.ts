import {
  createRemoteJWKSet,
  customFetch,
  errors,
  type FetchImplementation,
  type JWTHeaderParameters,
  type JWTPayload,
  type JWTVerifyGetKey,
  jwtVerify,
} from "jose";
import { Failure, issuerUnavailable, overloaded } from "../failures.ts";
import { limits } from "../limits.ts";
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
 * Creates a function that verifies access tokens, with the keys of their issuer.
 *
 * @param onWarning called when the issuer's keys can no longer be fetched
 */
export function createOidcVerifier(
  { issuer, audience }: { issuer: string; audience: string },
  onWarning: (message: string) => void,
) {
  const findKey = createIssuerKeys(issuer, onWarning);
  const remembered = new Map<string, { caller: Caller; expiresAt: number; until: number }>();

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

  /**
   * Verifies an access token, passed with its digest, and returns its caller. The token must come from
   * the issuer, for the audience, and be unexpired. Accepts RFC 9068 tokens, and those that common
   * issuers use instead.
   *
   * @throws {InvalidCredentialsError} the token is not valid
   * @throws {Failure} ISSUER_UNAVAILABLE, if the token's key cannot be fetched now; OVERLOADED,
   * if too many tokens wait for theirs
   */
  return async function verify(token: string, digest: string): Promise<Caller> {
    const known = remembered.get(digest);
    const isRemembered = known !== undefined && performance.now() < known.until;
    if (isRemembered && Date.now() < known.expiresAt) return known.caller;
    try {
      return await check(token, digest);
    } catch (error) {
      if (error instanceof errors.JOSEError) throw new InvalidCredentialsError(faultOf(error));
      if (error instanceof Failure || error instanceof InvalidCredentialsError) throw error;
      // A bad key of the issuer, such as RSA with 1,024 bits, is not the caller's mistake.
      const fault = `a key of the issuer cannot be used: ${(error as Error).message}`;
      throw issuerUnavailable(new InvalidCredentialsError(fault));
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

/** Interval of fetching the issuer's keys, in milliseconds. */
const refreshMs = 10 * 60_000;

/**
 * Minimum interval of fetches for tokens, in milliseconds: short enough to find a new key soon, long
 * enough that tokens with unknown keys cannot flood the issuer.
 */
const cooldownMs = 1_000;

/**
 * Keeps the keys of an issuer (OpenID Connect Discovery 1.0, RFC 7517). Fetches them now, every ten
 * minutes, and when a token names an unknown key.
 *
 * @returns finds a key; throws a JOSEError if the issuer has no such key, ISSUER_UNAVAILABLE if it
 * cannot be asked now, or OVERLOADED if too many tokens wait for its reply
 */
function createIssuerKeys(issuer: string, onWarning: (message: string) => void): JWTVerifyGetKey {
  const metadataUrl = `${issuer.replace(/\/$/, "")}/.well-known/openid-configuration`;
  let failure: unknown;
  let askedAt = Number.NEGATIVE_INFINITY;
  let waiting = 0;

  /** Reads the metadata each time, since the keys may move. */
  const fetchKeys: FetchImplementation = async (url, init) => {
    const response = await fetch(url, init);
    if (response.status !== 200) throw new Error(`${url} replied with ${response.status}`);
    const metadata = (await response.json()) as Record<string, unknown> | null;
    if (metadata?.issuer !== issuer) {
      throw new Error(
        `${url} names another issuer: ${JSON.stringify(metadata?.issuer)?.slice(0, 256)}`,
      );
    }
    const keysUrl = metadata.jwks_uri;
    if (typeof keysUrl !== "string" || !isSecureUrl(keysUrl)) {
      throw new Error(`the jwks_uri of ${url} is not an https URL`);
    }
    return fetch(keysUrl, init);
  };

  const keys = createRemoteJWKSet(new URL(metadataUrl), {
    [customFetch]: fetchKeys,
    // While the issuer is down, its last keys are used for a day.
    cacheMaxAge: 24 * 60 * 60_000,
    // jose's uses the wall clock, which would block fetches if set back, and does not count failures.
    cooldownDuration: Infinity,
  });

  /** Fetches the keys, or waits for the fetch that is under way; never fails. */
  async function refresh(): Promise<void> {
    try {
      await keys.reload();
      failure = undefined;
    } catch (error) {
      const { message, cause = message } = error as Error;
      if (!failure) onWarning(`the keys of --oidc-issuer ${issuer} cannot be fetched: ${cause}`);
      failure = error;
    }
  }

  refresh();
  setInterval(refresh, refreshMs).unref();
  return async (header, token) => {
    try {
      if (keys.fresh) return await keys(header, token);
    } catch (error) {
      if (!(error instanceof errors.JWKSNoMatchingKey)) throw error;
    }
    const isDue = !keys.reloading && performance.now() - askedAt >= cooldownMs;
    if (isDue) askedAt = performance.now();
    // After a failure, only the call that asks again waits.
    if (isDue || (keys.reloading && !failure)) {
      if (waiting >= limits.tokenChecks) throw overloaded("checks of credentials");
      waiting += 1;
      await refresh();
      waiting -= 1;
    }
    if (failure) throw issuerUnavailable(failure);
    return keys(header, token);
  };
}
