import type { IncomingHttpHeaders } from "node:http";
import { credentialsInvalid, credentialsMissing } from "../failures.ts";
import type { Peer, PeerCertificate } from "../http/peer.ts";
import type { Config } from "../settings/config.ts";
import { useFiles } from "../settings/reloaded-files.ts";
import { allScopes, type Caller, InvalidCredentialsError } from "./caller.ts";
import { digestOf, readTokens } from "./tokens-file.ts";

/**
 * Authenticates the caller of a request: by its bearer token (RFC 6750) or, without one, by the
 * certificate of its connection.
 *
 * @throws {Failure} CREDENTIALS_MISSING, CREDENTIALS_INVALID, ISSUER_UNAVAILABLE or
 *   OVERLOADED
 */
export type Authenticate = (peer: Peer, headers: IncomingHttpHeaders) => Promise<Caller>;

/**
 * Creates authentication by the configured methods; undefined without any, when callers need no credentials.
 *
 * @param onWarning called with warnings that operators should act on
 * @throws {ConfigError} the tokens file cannot be read or has a wrong line
 */
export async function createAuthentication(
  { authTokensFile, oidcIssuer: issuer = "", oidcAudience: audience = "", tlsClientCa }: Config,
  onWarning: (message: string) => void,
) {
  const takesTokens = authTokensFile !== undefined || issuer !== "";
  const takesCertificates = tlsClientCa !== undefined;
  if (!takesTokens && !takesCertificates) return undefined;
  // Loaded only where OIDC is configured.
  const oidc = issuer === "" ? undefined : await import("./oidc.ts");
  const verify = oidc?.createOidcVerifier({ issuer, audience }, onWarning);
  const needed = [
    ...(takesTokens ? ["a bearer token in the authorization header"] : []),
    ...(takesCertificates ? ["a client certificate"] : []),
  ].join(" or ");
  let tokens = new Map<string, Caller>();

  async function byToken(authorization: string): Promise<Caller> {
    const [, token] = /^bearer +([!-~]+)$/i.exec(authorization) ?? [];
    if (token === undefined) throw new InvalidCredentialsError("the header has no bearer token");
    const digest = digestOf(token);
    const caller = tokens.get(digest) ?? (await verify?.(token, digest));
    if (caller === undefined)
      throw new InvalidCredentialsError("the tokens file has no such token");
    return caller;
  }

  const authenticate: Authenticate = async ({ certificate }, headers) => {
    try {
      if (takesTokens && headers.authorization !== undefined) {
        return await byToken(headers.authorization);
      }
      if (takesCertificates && certificate !== undefined) return byCertificate(certificate);
    } catch (error) {
      throw error instanceof InvalidCredentialsError ? credentialsInvalid(needed, error) : error;
    }
    throw credentialsMissing(needed);
  };

  const reload = authTokensFile
    ? await useFiles([["--auth-tokens-file", authTokensFile]], async ([content = Buffer.of()]) => {
        tokens = await readTokens(authTokensFile, content, onWarning);
      })
    : undefined;
  return { authenticate, reload };
}

function byCertificate({ holder, validFrom, validTo, isTrusted }: PeerCertificate): Caller {
  const now = Date.now();
  if (now < validFrom) throw new InvalidCredentialsError("the certificate is not valid yet");
  if (now > validTo) throw new InvalidCredentialsError("the certificate has expired");
  if (!isTrusted) throw new InvalidCredentialsError("no known CA has signed the certificate");
  if (holder === undefined) throw new InvalidCredentialsError("the certificate names nobody");
  const principal = `certificate ${holder}`;
  return { principal, name: principal, scopes: allScopes };
}
