import { hash, timingSafeEqual } from "node:crypto";
import { readFile } from "node:fs/promises";
import { type AuthenticationSources, ConfigError } from "../config.ts";
import type { Exchange } from "../http/exchange.ts";
import { credentialsInvalid, credentialsMissing } from "../service/errors.ts";
import type { Connection } from "./connection.ts";

/** What a caller can be allowed to do. */
export const scopeNames = ["investors:read", "investors:write"] as const;

/** One of {@link scopeNames}. */
export type Scope = (typeof scopeNames)[number];

/** Who calls, and what for. */
export interface Caller {
  /** A name that no two callers share, whichever way they are known. */
  readonly principal: string;
  /** What it may do; others than {@link scopeNames} have no meaning here. */
  readonly scopes: ReadonlySet<string>;
}

/**
 * Tells who makes a call: by its bearer token (RFC 6750) or, without one, by the
 * certificate of its connection.
 *
 * @throws {ConnectError} CREDENTIALS_MISSING, CREDENTIALS_INVALID or ISSUER_UNAVAILABLE
 */
export type Authenticate = (connection: Connection, exchange: Exchange) => Promise<Caller>;

/** The ways to authenticate that are set. */
export interface Authentication {
  readonly authenticate: Authenticate;
  /**
   * Reads the tokens file again; what it held before stays in force if it cannot be used.
   *
   * @throws {ConfigError} it cannot be read or has a wrong line
   */
  reload(): Promise<void>;
}

/**
 * Makes the ways to authenticate.
 *
 * @throws {ConfigError} the tokens file cannot be read or has a wrong line
 */
export async function createAuthentication(
  sources: AuthenticationSources,
): Promise<Authentication> {
  const { tokensFile, oidc, clientCertificates } = sources;
  // What OIDC needs is loaded only where it is set.
  const verify = oidc && (await import("./oidc.ts")).createOidcVerifier(oidc);
  const takesTokens = tokensFile !== undefined || oidc !== undefined;
  const needed = [
    ...(takesTokens ? ["a bearer token in the authorization header"] : []),
    ...(clientCertificates ? ["a client certificate"] : []),
  ].join(" or ");
  let tokens: TokenTable | undefined;

  async function reload(): Promise<void> {
    if (tokensFile !== undefined) tokens = await readTokensFile(tokensFile);
  }

  const authenticate: Authenticate = async ({ certificate }, exchange) => {
    const authorization = takesTokens ? exchange.header("authorization") : undefined;
    if (authorization !== undefined) {
      const [, token] = /^bearer +([!-~]+)$/i.exec(authorization) ?? [];
      const caller = token && (tokens?.find(token) ?? (await verify?.(token)));
      if (caller) return caller;
    } else if (certificate === undefined || !clientCertificates) {
      throw credentialsMissing(needed);
    } else if (certificate.isTrusted) {
      return { principal: `certificate ${certificate.subject}`, scopes: new Set(scopeNames) };
    }
    throw credentialsInvalid(needed);
  };

  await reload();
  return { authenticate, reload };
}

/** The callers that are known by a token. */
interface TokenTable {
  /** The caller who has a token; the time that this takes tells nothing of any token. */
  find(token: string): Caller | undefined;
}

/**
 * Reads a file of bearer tokens. A line is a name, a token and the scopes of the caller, both
 * if it has none; a lone token is its own name. Empty lines and those that begin with # do
 * not count. Several lines may have the same name, so that a token can be replaced.
 *
 * @throws {ConfigError} it cannot be read, has a wrong line or none; no token is repeated
 */
async function readTokensFile(path: string): Promise<TokenTable> {
  const text = await readFile(path, "utf8").catch((error: NodeJS.ErrnoException) => {
    throw new ConfigError(`--auth-tokens-file ${path} cannot be read (${error.code})`);
  });
  const entries = text.split("\n").flatMap((line, i) => {
    const words = line.trim().split(/[\s,]+/);
    if (words[0] === "" || words[0]?.startsWith("#")) return [];
    return [readLine(words, (fault) => `--auth-tokens-file ${path}, line ${i + 1}: ${fault}`)];
  });
  if (entries.length === 0) throw new ConfigError(`--auth-tokens-file ${path} holds no token`);

  return {
    find(token) {
      const digest = digestOf(token);
      // To the end, whether found or not; digests all have the same length.
      return entries.reduce<Caller | undefined>(
        (found, entry) => (timingSafeEqual(entry.digest, digest) ? entry.caller : found),
        undefined,
      );
    },
  };
}

function readLine(
  [name = "", token = name, ...scopes]: string[],
  explain: (fault: string) => string,
) {
  const isKnown = (scope: string) => scopeNames.some((each) => each === scope);
  if (!/^[!-~]+$/.test(token)) {
    throw new ConfigError(explain("the token must be of printable ASCII characters"));
  }
  if (!scopes.every(isKnown)) {
    throw new ConfigError(
      explain(`it must be a name, a token and, of the scopes, ${scopeNames.join(" and ")} only`),
    );
  }
  const caller: Caller = {
    principal: `token ${name}`,
    scopes: new Set(scopes.length === 0 ? scopeNames : scopes),
  };
  return { digest: digestOf(token), caller };
}

function digestOf(token: string): Buffer {
  return hash("sha256", token, "buffer");
}
