import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import type { Violation } from "../investor/investor.ts";
import { ConfigError } from "../settings/config.ts";
import {
  databaseUrlFault,
  databaseUrls,
  sqlitePathOf,
  withoutSecrets,
} from "../store/database-url.ts";

/**
 * Batches of records; ones added meanwhile may be missing. Ending the iteration releases the source.
 * Throws an error for operators after the last readable batch, also if any may be missing.
 */
export type Source = AsyncGenerator<Investor[]>;

export interface Target {
  /**
   * Writes records and adds them to the tally, even if others of the batch fail. For a database,
   * they are durable once this resolves.
   *
   * @throws {Error} for operators
   */
  write(investors: Investor[], tally: Tally): Promise<void>;
  /**
   * Makes the file durable, and gives it its final name.
   *
   * @throws {Error} for operators
   */
  finish(): Promise<void>;
  /** Releases everything, and deletes an unfinished file. */
  close(): Promise<void>;
}

export interface Tally {
  copied: number;
  /** Records that the target already had, with the same content. */
  present: number;
  /** Wrong records and lines, and records that found another one under their id. */
  leftOut: number;
  /** Counts one of these, and says why, without any value. */
  leaveOut(which: string, why: string): void;
}

/** The source or target that an argument names. */
export interface Side {
  /** Its name in messages, without secrets of its URL. */
  name: string;
  /** The URL, if it is a database. */
  url?: string;
  /** The file; with neither URL nor path, it is standard input or output. */
  path?: string | undefined;
}

/** Arguments that name a database. */
export const databaseNames =
  "sqlite:PATH, sqlite:///PATH for an absolute path, mongodb://HOST, mongodb+srv://HOST, " +
  "env:NAME of a variable that holds one of these";

/**
 * Resolves an argument that may name an environment variable with a database URL: other users can see arguments.
 *
 * @param argument the argument's name
 * @returns the URL in the variable, or the argument itself if it names none
 * @throws {ConfigError} the variable contains no valid URL
 */
export function readVariable(argument: string, text: string, environment: NodeJS.ProcessEnv) {
  // Anything but a name may be a URL with a password.
  const [, name] = /^env:([\w.-]+)$/.exec(text) ?? [];
  if (name === undefined) return text;
  const url = environment[name];
  const fault = url ? databaseUrlFault(url, databaseUrls) : "is not set";
  if (url && !fault) return url;
  throw new ConfigError(`${argument}: the environment variable ${name} ${fault}`);
}

/**
 * Parses an argument.
 *
 * @param argument the argument's name
 * @throws {ConfigError} it names nothing that can be copied from or to
 */
export function readSide(argument: string, text: string, environment: NodeJS.ProcessEnv): Side {
  const value = readVariable(argument, text, environment);
  const fault = databaseUrlFault(value, `${databaseNames}, a file PATH.ndjson, or -`);
  if (fault === undefined) {
    return { name: withoutSecrets(value), url: value, path: sqlitePathOf(value) };
  }
  if (value === "-") return { name: argument === "FROM" ? "standard input" : "standard output" };
  // Anything that starts like a URL is not meant as a file.
  if (value.endsWith(".ndjson") && !/^([a-z0-9+.-]+:\/\/|sqlite:)/i.test(value)) {
    return { name: value, path: value };
  }
  // Does not repeat the value, which may contain a password.
  throw new ConfigError(`${argument} ${fault}`);
}

/** Lists all rules that a record breaks, without any of its values. */
export function describeViolations(violations: Violation[]): string {
  return violations.map((each) => `${showName(each.field)} ${each.description}`).join("; ");
}

/**
 * A member's name; quoted if it is not a word, with invisible characters such as U+FEFF escaped as
 * in JSON.
 */
function showName(name: string): string {
  if (/^\w{1,32}$/.test(name)) return name;
  const toEscape = (char: string) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return JSON.stringify(name.slice(0, 32)).replaceAll(/(?! )[\p{C}\p{Z}]/gv, toEscape);
}
