import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import { ConfigError } from "../config-error.ts";
import type { Violation } from "../investor/investor.ts";
import { type Database, parseDatabaseUrl } from "../store/database-url.ts";

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
   * Makes a file durable and gives it its final name, or closes a database. An SQLite file then no
   * longer needs its WAL.
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
  /** Wrong records and lines, and records that TO refuses, as for another one under their id. */
  leftOut: number;
  /** Counts one of these, and says why, without any value. */
  leaveOut(which: string, why: string): void;
}

/** What an argument names as source or target; `name` is for messages, without secrets. */
export type Side =
  | Database
  | { kind: "file"; path: string; name: string }
  | { kind: "standard"; name: string };

/** Arguments that name a database. */
const databaseNames =
  "sqlite:PATH, sqlite:///PATH for an absolute path, mongodb://HOST, mongodb+srv://HOST, " +
  "env:NAME of a variable that holds one of these";

/**
 * Parses an argument that names a database by its URL, or by an environment variable that holds one:
 * other users can see arguments.
 *
 * @param argument the argument's name
 * @param others what else an error names as accepted
 * @throws {ConfigError} it names no database; the message does not repeat it
 */
export function readArgument(
  argument: string,
  text: string,
  environment: NodeJS.ProcessEnv,
  others = "",
): Database {
  // Anything but a name may be a URL with a password.
  const [, name] = /^env:([\w.-]+)$/.exec(text) ?? [];
  if (name === undefined) return parseDatabaseUrl(argument, text, databaseNames + others);
  const variable = `${argument}: the environment variable ${name}`;
  const url = environment[name];
  if (!url) throw new ConfigError(`${variable} is not set`);
  return parseDatabaseUrl(variable, url);
}

/**
 * Parses an argument of a copy.
 *
 * @param argument the argument's name
 * @throws {ConfigError} it names nothing that can be copied from or to
 */
export function readSide(argument: string, text: string, environment: NodeJS.ProcessEnv): Side {
  if (text === "-") {
    return { kind: "standard", name: `standard ${argument === "FROM" ? "input" : "output"}` };
  }
  // Anything that starts like a URL is not meant as a file.
  if (text.endsWith(".ndjson") && !/^([a-z0-9+.-]+:\/\/|sqlite:|env:)/i.test(text)) {
    return { kind: "file", path: text, name: text };
  }
  return readArgument(argument, text, environment, ", a file PATH.ndjson, or -");
}

/** Lists all rules that a record breaks, without any of its values. */
export function describeViolations(violations: Violation[]): string {
  return violations.map(({ key, rule }) => `${showName(key)} ${rule}`).join("; ");
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
