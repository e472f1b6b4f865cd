import { createLocalJWKSet, errors, type JSONWebKeySet, type JWTVerifyGetKey } from "jose";
import { isSecureUrl } from "../config.ts";
import { issuerUnavailable } from "../service/errors.ts";

/** Timeout of a request to the issuer, in milliseconds. */
const requestTimeoutMs = 5_000;

/**
 * The least time between two fetches, in milliseconds: short enough to find a new key soon, and long
 * enough that tokens which name unknown keys cannot flood the issuer.
 */
const cooldownMs = 1_000;

/** The age at which keys are fetched again, in milliseconds. */
const refreshMs = 10 * 60_000;

/** The age up to which they serve while the issuer is down, in milliseconds. */
const maxAgeMs = 24 * 60 * 60_000;

/**
 * Fetches the keys of an issuer (OpenID Connect Discovery 1.0, RFC 7517) when the first token
 * comes, every ten minutes while tokens come, and when a token names a new one.
 *
 * @param onWarning called when they cannot be fetched any more
 */
export function createIssuerKeys(issuer: string, onWarning: (message: string) => void) {
  let find: JWTVerifyGetKey | undefined;
  let content = "";
  let fetchedAt = Number.NEGATIVE_INFINITY;
  let triedAt = Number.NEGATIVE_INFINITY;
  let failure: unknown;
  let fetching: Promise<JWTVerifyGetKey> | undefined;

  /** Fetches the keys, once for all who wait for them. */
  async function refresh(): Promise<JWTVerifyGetKey> {
    if (!fetching && failure && isCoolingDown()) throw issuerUnavailable(failure);
    fetching ??= load();
    return fetching;
  }

  async function load(): Promise<JWTVerifyGetKey> {
    try {
      const keys = (await fetchKeys(issuer)) as JSONWebKeySet;
      find = createLocalJWKSet(keys);
      content = JSON.stringify(keys);
      fetchedAt = performance.now();
      failure = undefined;
      return find;
    } catch (error) {
      const { message, cause = message } = error as Error;
      if (!failure) onWarning(`the keys of --oidc-issuer ${issuer} cannot be fetched: ${cause}`);
      failure = error;
      throw issuerUnavailable(error);
    } finally {
      triedAt = performance.now();
      fetching = undefined;
    }
  }

  function isCoolingDown(): boolean {
    return performance.now() - triedAt < cooldownMs;
  }

  /** The keys as they are known, fetched anew if it is time. */
  async function current(): Promise<JWTVerifyGetKey> {
    const age = performance.now() - fetchedAt;
    if (find === undefined || age > maxAgeMs) return refresh();
    if (age > refreshMs) {
      const last = find;
      const refreshed = refresh().catch(() => last);
      // Calls wait for it only after a time without any, and never while the issuer is down.
      if (!failure && age > 2 * refreshMs) return refreshed;
    }
    return find;
  }

  /** The keys in which one is looked for that the current ones do not have. */
  async function next(missing: errors.JWKSNoMatchingKey): Promise<JWTVerifyGetKey> {
    if (fetching) throw issuerUnavailable(missing);
    if (!failure && isCoolingDown()) throw missing;
    return refresh();
  }

  const findKey: JWTVerifyGetKey = async (header, token) => {
    try {
      const keys = await current();
      try {
        return await keys(header, token);
      } catch (error) {
        if (!(error instanceof errors.JWKSNoMatchingKey)) throw error;
        return await (await next(error))(header, token);
      }
    } catch (error) {
      const isOfToken =
        error instanceof errors.JWKSNoMatchingKey ||
        error instanceof errors.JWKSMultipleMatchingKeys ||
        error instanceof errors.JOSENotSupported;
      throw isOfToken ? error : issuerUnavailable(error);
    }
  };

  return {
    /**
     * Finds the key that has signed a token.
     *
     * @throws {JOSEError} the issuer has no such key
     * @throws {ConnectError} ISSUER_UNAVAILABLE, if the keys cannot be had, or the token names
     *   a new one while they are being fetched
     */
    findKey,
    /** The keys as text, which is another one once they have changed. */
    get text(): string {
      return content;
    },
  };
}

async function fetchKeys(issuer: string): Promise<unknown> {
  const url = `${issuer.replace(/\/$/, "")}/.well-known/openid-configuration`;
  const metadata = (await fetchJson(url)) as { issuer?: unknown; jwks_uri?: unknown } | null;
  if (metadata?.issuer !== issuer) throw new Error(`${url} is of another issuer`);
  const { jwks_uri: keysUrl } = metadata;
  if (typeof keysUrl !== "string" || !isSecureUrl(keysUrl)) {
    throw new Error(`the jwks_uri of ${url} is no https URL`);
  }
  return fetchJson(keysUrl);
}

async function fetchJson(url: string): Promise<unknown> {
  const signal = AbortSignal.timeout(requestTimeoutMs);
  const response = await fetch(url, { signal, redirect: "error" });
  if (!response.ok) throw new Error(`${url} replied with ${response.status}`);
  return response.json();
}
