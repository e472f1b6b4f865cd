import { databaseUrlFault, databaseUrls } from "../store/database-url.ts";
import { ConfigError } from "./config.ts";

/** What names a database as an argument. */
export const databaseNames =
  "sqlite:PATH, sqlite:///PATH for an absolute path, mongodb://HOST, mongodb+srv://HOST, " +
  "env:NAME of a variable that holds one of these";

/**
 * Reads an argument that may name a variable with a database URL, since others can see arguments.
 *
 * @param argument what the argument is called
 * @returns the URL in the variable, or the text if it names none
 * @throws {ConfigError} the variable has no such URL
 */
export function readVariable(
  argument: string,
  text: string,
  environment: NodeJS.ProcessEnv,
): string {
  // What is no name may be a URL with a password.
  const [, name] = /^env:([\w.-]+)$/.exec(text) ?? [];
  if (name === undefined) return text;
  const url = environment[name];
  const fault = url ? databaseUrlFault(url, databaseUrls) : "is not set";
  if (url && !fault) return url;
  throw new ConfigError(`${argument}: the environment variable ${name} ${fault}`);
}
