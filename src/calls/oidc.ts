import { ConnectError } from "@connectrpc/connect";
import { errors, type JWTHeaderParameters, type JWTPayload, jwtVerify } from "jose";
import type { OidcOptions } from "../config.ts";
import { issuerUnavailable } from "../service/errors.ts";
import { type Caller, InvalidCredentialsError, scopeNames } from "./caller.ts";
import { createIssuerKeys } from "./issuer-keys.ts";
import { createSlots } from "./slots.ts";

/** How many tokens may be checked at once, each of which can wait for the issuer. */
const maxChecks = 256;

/** The time that a verified token is remembered, in milliseconds, and the most that are. */
const rememberedMs = 60_000;
const maxRemembered = 10_000;

/** By how much the clock of the issuer may be ahead, in seconds. */
const clockTolerance = 30;

/** Signatures by which nobody but the issuer can have signed (RFC 7518, RFC 8037). */
const algorithms = [
  ...["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"],
  ...["ES256", "ES384", "ES512", "EdDSA", "Ed25519"],
];

/** What was found out of a token, and until when that holds. */
interface Verdict {
  readonly caller: Caller;
  /** The keys that it was checked with, as text. */
  readonly keysText: string;
  /** In milliseconds of Unix time. */
  readonly expiresAt: number;
  /** In milliseconds of this process. */
  readonly forgottenAt: number;
}

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
  const keys = createIssuerKeys(issuer, onWarning);
  const checks = createSlots(maxChecks);
  const remembered = new Map<string, Verdict>();

  function recall(digest: string): Caller | undefined {
    const verdict = remembered.get(digest);
    const isGood =
      verdict?.keysText === keys.text &&
      performance.now() < verdict.forgottenAt &&
      Date.now() < verdict.expiresAt;
    return isGood ? verdict.caller : undefined;
  }

  function remember(digest: string, verdict: Verdict): void {
    remembered.delete(digest);
    // They stand in the order in which they are forgotten.
    for (const [oldest, { forgottenAt }] of remembered) {
      if (remembered.size < maxRemembered && performance.now() < forgottenAt) break;
      remembered.delete(oldest);
    }
    remembered.set(digest, verdict);
  }

  async function verify(token: string, digest: string): Promise<Caller> {
    const { text: keysText } = keys;
    const options = { issuer, audience, algorithms, clockTolerance };
    const { payload, protectedHeader } = await jwtVerify(token, keys.findKey, options);
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
    const forgottenAt = performance.now() + rememberedMs;
    if (keysText === keys.text) remember(digest, { caller, keysText, expiresAt, forgottenAt });
    return caller;
  }

  return async (token: string, digest: string): Promise<Caller> => {
    const known = recall(digest);
    if (known !== undefined) return known;
    const release = checks.acquire();
    try {
      return await verify(token, digest);
    } catch (error) {
      if (error instanceof errors.JOSEError) throw new InvalidCredentialsError(describe(error));
      const isKnown = error instanceof ConnectError || error instanceof InvalidCredentialsError;
      // What is wrong with a key is no mistake of the caller.
      throw isKnown ? error : issuerUnavailable(error);
    } finally {
      release();
    }
  };
}

/** What is wrong with a token. The message of the error may repeat what is in it. */
function describe({ code, claim = "" }: errors.JOSEError & { claim?: string }): string {
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

/** What a token allows, in a list or separated by spaces, as issuers have it. */
function scopesOf({ scope, scp }: JWTPayload): Set<string> {
  const granted = [scope, scp].flat().flatMap((each) => {
    return typeof each === "string" ? each.split(" ") : [];
  });
  return new Set(scopeNames.filter((name) => granted.includes(name)));
}
