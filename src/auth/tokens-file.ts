import { hash } from "node:crypto";
import { stat } from "node:fs/promises";
import { setImmediate } from "node:timers/promises";
import { ConfigError } from "../settings/config.ts";
import { readSettingFile } from "../settings/reloaded-files.ts";
import { allScopes, type Caller, scopeNames } from "./caller.ts";

/** The fewest characters of a token, so that nobody can guess it. */
const minTokenLength = 16;

/** More characters than a name, a token and scopes have. */
const maxLineLength = 64 * 1024;

/** How many lines are read in a turn of the event loop. */
const linesAtOnce = 256;

/** What may follow a token. `metrics` adds nothing to what every valid token allows: `/metrics`. */
const scopeWords: readonly string[] = [...scopeNames, "metrics"];

/** The digest to look a token up by, so that the time of a lookup reveals nothing about any token. */
export function digestOf(token: string): string {
  return hash("sha256", token);
}

/**
 * Reads a file of bearer tokens. A line is a name, a token and the scopes of the caller: both if
 * there is none, neither if the only word is `metrics`. A lone token is its own name. Empty lines
 * and those that begin with # do not count. Several lines may have the same name, so that a token
 * can be replaced.
 *
 * @param onWarning called if others than its owner may use the file
 * @returns the callers by the digests of their tokens
 * @throws {ConfigError} it cannot be read, has a wrong line or none; no token is repeated
 */
export async function readTokensFile(
  path: string,
  onWarning: (message: string) => void,
): Promise<Map<string, Caller>> {
  const text = String(await readSettingFile("--auth-tokens-file", path));
  const callers = new Map<string, Caller>();
  for (let i = 0, start = 0, end = 0; start < text.length; i += 1, start = end + 1) {
    // A large file takes long, and calls are served meanwhile.
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
      // A name that is a token must not be shown.
      name: name === token ? `token ${digest.slice(0, 8)}` : `token ${name}`,
      scopes: scopes.length === 0 ? allScopes : new Set(scopes),
    });
  }
  if (callers.size === 0) throw new ConfigError(`--auth-tokens-file ${path} holds no token`);
  const { mode } = await stat(path);
  // A group may read it: that is how Kubernetes and systemd hand a secret to the user of a process.
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
