import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import type { Violation } from "../investor/investor.ts";
import { ConfigError } from "../settings/config.ts";
import {
  databaseUrlFault,
  databaseUrls,
  sqlitePathOf,
  withoutSecrets,
} from "../store/database-url.ts";

export interface Source {
  /**
   * The records; those that are added meanwhile may be missing. Its end releases the source.
   *
   * @throws {Error} for operators, after the last batch that could be read
   */
  readonly batches: AsyncGenerator<Investor[]>;
  /** The part of it that was read, from 0 to 1; absent or undefined if its end is not known. */
  partRead?(): number | undefined;
  /**
   * Looks for damage that reading it does not show.
   *
   * @throws {Error} for operators, if there is any, or it could not be looked for
   */
  findDamage?: ((signal: AbortSignal) => Promise<void>) | undefined;
}

/** Called with each line or record that is left out: its number or id, and why, without values. */
export type OnFault = (which: string, why: string) => void;

export interface Target {
  /** How many records a database had at first. */
  readonly before?: number;
  /**
   * Writes records, and adds them to the tally, also if others of the batch fail. A database has
   * them on the disk when it resolves.
   *
   * @throws {Error} for operators
   */
  write(investors: Investor[], tally: Tally): Promise<void>;
  /**
   * Makes what was written durable, and gives it its name.
   *
   * @throws {Error} for operators
   */
  finish(): Promise<void>;
  /** Whether its file is there under its name. */
  isThere?(): boolean;
  /** Releases everything. Nothing stays of a file that was not finished. */
  close(): Promise<void>;
}

export interface Tally {
  copied: number;
  /** Records that were there already, with the same content. */
  present: number;
  /** Records whose id another record has, and the first of these ids. */
  conflicts: number;
  conflictingIds: string[];
  /** What was left out, since it is no record or breaks the rules. */
  faults: number;
}

/** What an argument of a copy names. */
export interface Side {
  /** What it is called, without the secrets of its URL. */
  name: string;
  /** The database, if it is one. */
  url?: string;
  /** The file, if it is one; standard input or output if it is neither. */
  path?: string | undefined;
}

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
export function readVariable(argument: string, text: string, environment: NodeJS.ProcessEnv) {
  // What is no name may be a URL with a password.
  const [, name] = /^env:([\w.-]+)$/.exec(text) ?? [];
  if (name === undefined) return text;
  const url = environment[name];
  const fault = url ? databaseUrlFault(url, databaseUrls) : "is not set";
  if (url && !fault) return url;
  throw new ConfigError(`${argument}: the environment variable ${name} ${fault}`);
}

/**
 * Reads an argument.
 *
 * @param argument what the argument is called
 * @throws {ConfigError} it names nothing that can be copied from or to
 */
export function readSide(argument: string, text: string, environment: NodeJS.ProcessEnv): Side {
  const value = readVariable(argument, text, environment);
  const fault = databaseUrlFault(value, `${databaseNames}, a file PATH.ndjson, or -`);
  if (fault === undefined) {
    return { name: withoutSecrets(value), url: value, path: sqlitePathOf(value) };
  }
  if (value === "-") return { name: argument === "FROM" ? "standard input" : "standard output" };
  // What begins like a URL is not meant as a file.
  if (value.endsWith(".ndjson") && !/^([a-z0-9+.-]+:\/\/|sqlite:)/i.test(value)) {
    return { name: value, path: value };
  }
  // The value may hold a password, and is not repeated.
  throw new ConfigError(`${argument} ${fault}`);
}

/** Says all rules that a record breaks, without any of its values. */
export function describeViolations(violations: Violation[]): string {
  return violations.map((each) => `${showName(each.field)} ${each.description}`).join("; ");
}

/**
 * The name of a member. One that is no word is in quotes, with what cannot be seen in it as JSON
 * escapes it, such as U+FEFF.
 */
function showName(name: string): string {
  if (/^\w{1,32}$/.test(name)) return name;
  const toEscape = (char: string) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return JSON.stringify(name.slice(0, 32)).replaceAll(/(?! )[\p{C}\p{Z}]/gv, toEscape);
}
