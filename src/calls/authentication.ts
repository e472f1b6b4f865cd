import type { AuthenticationSources } from "../config.ts";
import { credentialsInvalid, credentialsMissing } from "../service/errors.ts";
import type { CallHead } from "./call.ts";
import { type Caller, scopeNames } from "./caller.ts";
import type { Connection } from "./connection.ts";
import { createOidcVerifier } from "./oidc.ts";
import { readTokensFile, type TokenTable } from "./tokens-file.ts";

/**
 * Tells who makes a call: by its bearer token (RFC 6750) or, without one, by the
 * certificate of its connection.
 *
 * @throws {ConnectError} CREDENTIALS_MISSING, CREDENTIALS_INVALID or ISSUER_UNAVAILABLE
 */
export type Authenticate = (connection: Connection, header: CallHead["header"]) => Promise<Caller>;

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
  const verify = oidc && createOidcVerifier(oidc);
  const takesTokens = tokensFile !== undefined || oidc !== undefined;
  const needed = [
    ...(takesTokens ? ["a bearer token in the authorization header"] : []),
    ...(clientCertificates ? ["a client certificate"] : []),
  ].join(" or ");
  let tokens: TokenTable | undefined;

  async function reload(): Promise<void> {
    if (tokensFile !== undefined) tokens = await readTokensFile(tokensFile);
  }

  const authenticate: Authenticate = async ({ certificate }, header) => {
    const authorization = takesTokens ? header("authorization") : undefined;
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
