import type { AuthenticationSources } from "../config.ts";
import type { Exchange } from "../http/exchange.ts";
import { credentialsInvalid, credentialsMissing } from "../service/errors.ts";
import { allScopes, type Caller } from "./caller.ts";
import type { Peer } from "./peer.ts";
import { digestOf, readTokensFile } from "./tokens-file.ts";

/**
 * Tells who makes a call: by its bearer token (RFC 6750) or, without one, by the
 * certificate of its connection.
 *
 * @throws {ConnectError} CREDENTIALS_MISSING, CREDENTIALS_INVALID, ISSUER_UNAVAILABLE or
 *   OVERLOADED
 */
export type Authenticate = (peer: Peer, exchange: Exchange) => Promise<Caller>;

/**
 * Makes the ways to authenticate that are set.
 *
 * @param onWarning is told what those who run the service should see to
 * @throws {ConfigError} the tokens file cannot be read or has a wrong line
 */
export async function createAuthentication(
  sources: AuthenticationSources,
  onWarning: (message: string) => void,
) {
  const { tokensFile, oidc, clientCertificates } = sources;
  // What OIDC needs is loaded only where it is set.
  const verify = oidc && (await import("./oidc.ts")).createOidcVerifier(oidc, onWarning);
  const takesTokens = tokensFile !== undefined || oidc !== undefined;
  const needed = [
    ...(takesTokens ? ["a bearer token in the authorization header"] : []),
    ...(clientCertificates ? ["a client certificate"] : []),
  ].join(" or ");
  let tokens: Map<string, Caller> | undefined;

  /**
   * Reads the tokens file again; what it held before stays in force if it cannot be used.
   *
   * @throws {ConfigError} it cannot be read or has a wrong line
   */
  async function reload(): Promise<void> {
    if (tokensFile !== undefined) tokens = await readTokensFile(tokensFile, onWarning);
  }

  function byCertificate(certificate: NonNullable<Peer["certificate"]>): Caller | undefined {
    const { holder, isTrusted, validFrom, validTo } = certificate;
    const now = Date.now();
    if (holder === undefined || !isTrusted || now < validFrom || now > validTo) return undefined;
    const principal = `certificate ${holder}`;
    return { principal, name: principal, scopes: allScopes };
  }

  async function byToken(authorization: string): Promise<Caller | undefined> {
    const [, token] = /^bearer +([!-~]+)$/i.exec(authorization) ?? [];
    if (token === undefined) return undefined;
    const digest = digestOf(token);
    return tokens?.get(digest) ?? verify?.(token, digest);
  }

  const authenticate: Authenticate = async ({ certificate }, exchange) => {
    const authorization = takesTokens ? exchange.header("authorization") : undefined;
    const shown = clientCertificates ? certificate : undefined;
    if (authorization === undefined && shown === undefined) throw credentialsMissing(needed);
    const caller =
      authorization === undefined ? shown && byCertificate(shown) : await byToken(authorization);
    if (caller === undefined) throw credentialsInvalid(needed);
    return caller;
  };

  await reload();
  return { authenticate, reload };
}
