import { createRemoteJWKSet, errors, type JWTVerifyGetKey, jwtVerify } from "jose";
import type { OidcOptions } from "../config.ts";
import { issuerUnavailable } from "../service/errors.ts";
import type { Caller } from "./authentication.ts";

/** Timeout of the issuer, in milliseconds. */
const issuerTimeoutMs = 5_000;

/**
 * How soon after a request to the issuer the next may follow, in milliseconds: a new key is
 * found as soon, and tokens that name unknown keys are no flood to the issuer.
 */
const cooldownMs = 1_000;

/** Signatures by which nobody but the issuer can have signed (RFC 7518, RFC 8037). */
const algorithms = [
  ...["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"],
  ...["ES256", "ES384", "ES512", "EdDSA", "Ed25519"],
];

/**
 * Makes a function that tells whose access token it is given: one of the issuer, for the
 * audience, not expired (OpenID Connect Discovery 1.0, RFC 9068). Without a token that
 * passes, it is undefined.
 *
 * @throws {ConnectError} ISSUER_UNAVAILABLE, if the keys of the issuer cannot be had
 */
export function createOidcVerifier({ issuer, audience }: OidcOptions) {
  const keys = createKeys(issuer);

  return async (token: string): Promise<Caller | undefined> => {
    try {
      const { payload } = await jwtVerify(token, keys, {
        issuer,
        audience,
        algorithms,
        requiredClaims: ["exp", "sub"],
      });
      const scope = typeof payload.scope === "string" ? payload.scope : "";
      return { principal: `oidc ${issuer} ${payload.sub}`, scopes: new Set(scope.split(" ")) };
    } catch (error) {
      if (error instanceof errors.JOSEError) return undefined;
      throw error;
    }
  };
}

/** Finds the issuer's keys when the first token comes, and again when an unknown key does. */
function createKeys(issuer: string): JWTVerifyGetKey {
  let discovery: Promise<JWTVerifyGetKey> | undefined;

  function discover(): Promise<JWTVerifyGetKey> {
    discovery ??= fetchKeysUrl(issuer).then(
      (url) =>
        createRemoteJWKSet(url, {
          timeoutDuration: issuerTimeoutMs,
          cooldownDuration: cooldownMs,
        }),
      (error) => {
        setTimeout(() => {
          discovery = undefined;
        }, cooldownMs).unref();
        throw error;
      },
    );
    return discovery;
  }

  return async (header, token) => {
    try {
      const keys = await discover();
      return await keys(header, token);
    } catch (error) {
      const isOfToken =
        error instanceof errors.JWKSNoMatchingKey ||
        error instanceof errors.JWKSMultipleMatchingKeys ||
        error instanceof errors.JOSENotSupported;
      throw isOfToken ? error : issuerUnavailable(error);
    }
  };
}

async function fetchKeysUrl(issuer: string): Promise<URL> {
  const url = `${issuer.replace(/\/$/, "")}/.well-known/openid-configuration`;
  const answer = await fetch(url, { signal: AbortSignal.timeout(issuerTimeoutMs) });
  if (!answer.ok) throw new Error(`${url} answered ${answer.status}`);
  const metadata = (await answer.json()) as { issuer?: unknown; jwks_uri?: unknown };
  if (metadata.issuer !== issuer) throw new Error(`${url} is of another issuer`);
  return new URL(String(metadata.jwks_uri));
}
