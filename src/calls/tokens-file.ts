import { hash, timingSafeEqual } from "node:crypto";
import { readFile } from "node:fs/promises";
import { ConfigError } from "../config.ts";
import { type Caller, scopeNames } from "./caller.ts";

/** The callers that are known by a token. */
export interface TokenTable {
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
export async function readTokensFile(path: string): Promise<TokenTable> {
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
