import { ConfigError } from "../config.ts";
import { databaseUrlFault, databaseUrls, sqlitePathOf, withoutSecrets } from "../database-url.ts";
import { inPlainWords } from "../store/sqlite-errors.ts";
import {
  copyRecords,
  countAll,
  inDigits,
  inTime,
  type Source,
  showProgress,
  type Tally,
  type Target,
} from "./copier.ts";
import { openMongoSource, openSqliteSource, openStoreTarget } from "./databases.ts";
import { createNdjsonSource, LineError, openNdjsonSource } from "./ndjson-source.ts";
import { openNdjsonTarget, openStdoutTarget } from "./ndjson-target.ts";

/** What the command is given. */
interface CopyOptions {
  from: string;
  to: string;
  environment: NodeJS.ProcessEnv;
  /** Stops it between two batches. */
  signal: AbortSignal;
  /** Prints a line for the user. */
  say(line: string): void;
  /** Standard error, if it is a terminal to draw a bar on. */
  terminal: NodeJS.WritableStream | undefined;
}

/**
 * Copies all records from one store or file to another.
 *
 * @returns whether all of them are there
 * @throws {ConfigError} an argument is wrong, and nothing was done
 */
export async function runCopy(options: CopyOptions): Promise<boolean> {
  const { environment, signal, say, terminal } = options;
  const from = readEndpoint("FROM", options.from, environment);
  const to = readEndpoint("TO", options.to, environment);
  const tally: Tally = { copied: 0, present: 0, conflicts: 0, conflictingIds: [], part: undefined };
  const start = performance.now();
  const reading = `cannot read ${from.name}`;
  const writing = `cannot write to ${to.name}`;
  // What has failed if an error is thrown.
  let failing = reading;
  let target: Target | undefined;
  try {
    const writeFailed = new AbortController();
    const source = await openSource(from, AbortSignal.any([signal, writeFailed.signal]));
    failing = writing;
    target = await openTarget(to);
    failing = reading;
    const hideProgress = showProgress(tally, say, terminal);
    await copyRecords(source, target, tally, signal, () => {
      failing = writing;
      writeFailed.abort();
    }).finally(hideProgress);
    failing = writing;
    await target.finish();
  } catch (error) {
    const message = `${failing}: ${inPlainWords(error).replaceAll(/\s+/g, " ")}`;
    if (error instanceof ConfigError) throw new ConfigError(message);
    const why = signal.aborted ? `stopped by ${signal.reason}` : `error: ${message}`;
    const next =
      error instanceof LineError && !signal.aborted
        ? "correct the line and repeat the command"
        : countAll(tally) > 0 && "the same command goes on from there";
    const rest = [why, target && describeRest(tally, to), target && to.url && next];
    say(rest.filter(Boolean).join("; "));
    return false;
  } finally {
    // A failure here changes neither what was printed nor what is durable.
    await target?.close().catch(() => {});
  }
  if (tally.conflicts > 0) {
    say(`error: ${describe(tally)}`);
    return false;
  }
  const seconds = (performance.now() - start) / 1_000;
  const rate = inDigits(countAll(tally) / seconds);
  say(`${describe(tally)}, in ${inTime(seconds)} (${rate} a second)`);
  return true;
}

function describe({ copied, present, conflicts, conflictingIds }: Tally): string {
  const done = `copied ${countOf(copied)}, and found ${inDigits(present)} already there`;
  if (conflicts === 0) return done;
  const more = conflicts - conflictingIds.length;
  const ids = conflictingIds.join(", ") + (more > 0 ? ` and ${inDigits(more)} more` : "");
  return `conflicts with other content under the same ids, which stays: ${inDigits(conflicts)} (${ids}); ${done}`;
}

function describeRest(tally: Tally, { name, url, path }: Endpoint): string {
  if (url !== undefined) return describe(tally);
  return path === undefined ? `wrote ${countOf(tally.copied)}` : `${name} was not made`;
}

function countOf(records: number): string {
  return records === 1 ? "1 record" : `${inDigits(records)} records`;
}

/** One side of a copy. */
interface Endpoint {
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
 * @param side what the argument is called
 * @throws {ConfigError} it names nothing that can be copied from or to
 */
function readEndpoint(side: string, text: string, environment: NodeJS.ProcessEnv): Endpoint {
  const value = readVariable(side, text, environment);
  const fault = databaseUrlFault(value, `${databaseNames}, a file PATH.ndjson, or -`);
  if (fault === undefined) {
    return { name: withoutSecrets(value), url: value, path: sqlitePathOf(value) };
  }
  if (value === "-") return { name: side === "FROM" ? "standard input" : "standard output" };
  // What begins like a URL is not meant as a file.
  if (value.endsWith(".ndjson") && !/^([a-z0-9+.-]+:\/\/|sqlite:)/i.test(value)) {
    return { name: value, path: value };
  }
  // The value may hold a password, and is not repeated.
  throw new ConfigError(`${side} ${fault}`);
}

/** What names a database as an argument. */
export const databaseNames =
  "sqlite:PATH, sqlite:///PATH for an absolute path, mongodb://HOST, mongodb+srv://HOST, " +
  "env:NAME of a variable that holds one of these";

/**
 * Reads an argument that may name a variable with a database URL, since others can see arguments.
 *
 * @param side what the argument is called
 * @returns the URL in the variable, or the text if it names none
 * @throws {ConfigError} the variable has no such URL
 */
export function readVariable(side: string, text: string, environment: NodeJS.ProcessEnv): string {
  // What is no name may be a URL with a password.
  const [, name] = /^env:([\w.-]+)$/.exec(text) ?? [];
  if (name === undefined) return text;
  const url = environment[name];
  const fault = url ? databaseUrlFault(url, databaseUrls) : "is not set";
  if (url && !fault) return url;
  throw new ConfigError(`${side}: the environment variable ${name} ${fault}`);
}

async function openSource({ url, path }: Endpoint, signal: AbortSignal): Promise<Source> {
  if (url !== undefined) return path === undefined ? openMongoSource(url) : openSqliteSource(path);
  if (path !== undefined) return openNdjsonSource(path, signal);
  return createNdjsonSource(process.stdin, signal);
}

async function openTarget({ url, path }: Endpoint): Promise<Target> {
  if (url !== undefined) return openStoreTarget(url);
  return path === undefined ? openStdoutTarget() : openNdjsonTarget(path);
}
