import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import { ConfigError } from "../config.ts";
import { databaseNames, readVariable } from "../database-argument.ts";
import { databaseUrlFault, sqlitePathOf, withoutSecrets } from "../store/database-url.ts";

/** Where records come from. */
export interface Source {
  /**
   * The records; those that are added meanwhile may be missing. Its end releases the source.
   *
   * @throws {Error} for operators, after the last batch that could be read
   */
  readonly batches: AsyncGenerator<Investor[]>;
  /** The part of it that was read, from 0 to 1; undefined if its end is not known. */
  partRead(): number | undefined;
}

/** Where records go. */
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
   * Makes durable, and shows under its name, what was written.
   *
   * @throws {Error} for operators
   */
  finish(): Promise<void>;
  /** Releases everything. Nothing stays of a file that was not finished. */
  close(): Promise<void>;
}

/** The records of a copy so far. */
export interface Tally {
  copied: number;
  /** Records that were there already, with the same content. */
  present: number;
  /** Records whose id another record has, and the first of these ids. */
  conflicts: number;
  conflictingIds: string[];
}

/** What an argument of a copy names. */
export interface Side {
  /** What it is called, without what its URL may hold of secrets. */
  name: string;
  /** The database, if it is one. */
  url?: string;
  /** The file, if it is one; standard input or output if it is neither. */
  path?: string | undefined;
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
