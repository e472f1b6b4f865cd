import { hash } from "node:crypto";
import { stat } from "node:fs/promises";
import { setImmediate } from "node:timers/promises";
import { ConfigError } from "../config-error.ts";
import { allScopes, type Caller, scopeNames } from "./caller.ts";

/** The shortest token, in characters; shorter ones could be guessed. */
const minTokenLength = 16;

/** The longest line, in characters: more than a name, a token and scopes need. */
const maxLineLength = 64 * 1024;

/** How many lines to read per turn of the event loop. */
const linesAtOnce = 256;

/** Words that may follow a token. `metrics` grants only what every valid token may do: read `/metrics`. */
const scopeWords: readonly string[] = [...scopeNames, "metrics"];

/** The digest by which tokens are looked up, so that lookup times reveal nothing about tokens. */
export function digestOf(token: string): string {
  return hash("sha256", token);
}

/**
 * Reads the content of a file of bearer tokens. Each line has a name, a token and the caller's scopes: both scopes if
 * none is given, neither if the only word is `metrics`. A lone token is its own name. Empty lines and
 * lines that start with # are ignored. Several lines may have the same name, so that a token can be
 * rotated.
 *
 * @param onWarning called if users other than the owner may access the file
 * @returns the callers by the digests of their tokens
 * @throws {ConfigError} the file has a wrong line or no token; no token is repeated
 */
export async function readTokens(
  path: string,
  content: Buffer,
  onWarning: (message: string) => void,
) {
  const text = String(content);
  const callers = new Map<string, Caller>();
  for (let i = 0, start = 0, end = 0; start < text.length; i += 1, start = end + 1) {
    // A large file takes long; calls are served meanwhile.
    if (i % linesAtOnce === 0) await setImmediate();
    end = text.indexOf("\n", start);
    if (end === -1) end = text.length;
    const line = text.slice(start, end).trim();
    if (line === "" || line.startsWith("#")) continue;
    const words = line.length > maxLineLength ? [] : line.split(/\s+/);
    const [name = "", token = name, ...scopes] = words;
    const digest = digestOf(token);
    const fault =
      words.length === 0
        ? "the line is too long"
        : callers.has(digest)
          ? "the token is on an earlier line too"
          : findFault(name, token, scopes);
    if (fault) throw new ConfigError(`--auth-tokens-file ${path}, line ${i + 1}: ${fault}`);
    callers.set(digest, {
      principal: `token ${name}`,
      // A token used as a name must not be shown.
      name: name === token ? `token ${digest.slice(0, 8)}` : `token ${name}`,
      scopes: scopes.length === 0 ? allScopes : new Set(scopes),
    });
  }
  if (callers.size === 0) throw new ConfigError(`--auth-tokens-file ${path} holds no token`);
  const { mode } = await stat(path);
  // The group may read it: Kubernetes and systemd pass secrets to a process's user that way.
  if ((mode & 0o037) !== 0)
    onWarning(`${path} can be written by its group, or is open to others: chmod 640 it`);
  return callers;
}

function findFault(name: string, token: string, scopes: string[]): string | undefined {
  if (scopeWords.includes(token)) return `${token} is a scope, not a token`;
  if (!/^[!-~]+$/.test(token)) return "the token must be of printable ASCII characters";
  if (name.includes(",") || token.includes(",")) {
    return "name, token and scopes must be separated by spaces, and hold no comma";
  }
  if (token.length < minTokenLength) {
    return `the token must have at least ${minTokenLength} characters`;
  }
  if (!scopes.every((each) => scopeWords.includes(each))) {
    return `it must be a name, a token and optionally scopes, which are ${scopeWords.join(", ")}`;
  }
  return undefined;
}
