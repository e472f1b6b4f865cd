import { ConfigError } from "../config.ts";
import { unlessAborted } from "../store/abort.ts";
import { explainError } from "../store/sqlite-errors.ts";
import { DatabaseUrlError } from "../store/store.ts";
import { openStoreSource, openStoreTarget } from "./databases.ts";
import { createNdjsonSource, openNdjsonSource } from "./ndjson-source.ts";
import { openNdjsonTarget, openStdoutTarget } from "./ndjson-target.ts";
import { readSide, type Side, type Source, type Tally, type Target } from "./sides.ts";

/** How often it says how far it is, in milliseconds. */
const progressIntervalMs = 5_000;

interface CopyOptions {
  from: string;
  to: string;
  environment: NodeJS.ProcessEnv;
  /** Stops it between two batches. */
  signal: AbortSignal;
  /** Prints a line for the user. */
  say(line: string): void;
}

/**
 * Copies all records from one store or file to another, in constant memory. What was written to a
 * store stays, also if the rest fails.
 *
 * @returns whether all of them are there
 * @throws {ConfigError} an argument is wrong, and nothing was done
 */
export async function runCopy(options: CopyOptions): Promise<boolean> {
  const { environment, signal, say } = options;
  const from = readSide("FROM", options.from, environment);
  const to = readSide("TO", options.to, environment);
  const reading = failAs(`cannot read ${from.name}`, from);
  const writing = failAs(`cannot write to ${to.name}`, to);
  const tally: Tally = { copied: 0, present: 0, conflicts: 0, conflictingIds: [] };
  const warn = (message: string) => say(`warning: ${message}`);
  const start = performance.now();
  let target: Target | undefined;
  try {
    const source = await reading(openSource(from));
    target = await writing(openTarget(to, warn));
    const progress = setInterval(sayProgress, progressIntervalMs, source);
    await copyRecords(source, target).finally(() => clearInterval(progress));
    await writing(target.finish());
  } catch (error) {
    if (error instanceof ConfigError) throw error;
    const why = signal.aborted
      ? `stopped by ${signal.reason}`
      : `error: ${(error as Error).message}`;
    const next = to.url && countAll(tally) > 0 && "the same command goes on from there";
    const rest = [why, target && describeRest(tally, to), next];
    say(rest.filter(Boolean).join("; "));
    return false;
  } finally {
    // A failure here changes neither what was printed nor what is durable.
    await target?.close().catch(() => {});
  }
  const others = (target.before ?? 0) - tally.present - tally.conflicts;
  if (others > 0) say(`warning: ${to.name} has ${countOf(others)} that ${from.name} does not have`);
  if (tally.conflicts > 0) {
    say(`error: ${describe(tally)}`);
    return false;
  }
  const takenMs = performance.now() - start;
  say(`${describe(tally)}, in ${formatDuration(takenMs)} (${rateOf(tally, takenMs)})`);
  return true;

  function sayProgress({ partRead }: Source): void {
    const takenMs = performance.now() - start;
    const part = partRead() ?? 0;
    const left = part > 0 ? formatDuration(takenMs / part - takenMs) : "unknown";
    say(`${countOf(countAll(tally))}, ${rateOf(tally, takenMs)}, time left: ${left}`);
  }

  /** Reads each batch while the two before it are written. */
  async function copyRecords({ batches }: Source, { write }: Target): Promise<void> {
    let older = Promise.resolve();
    let newer = older;
    try {
      for (;;) {
        const both = Promise.all([reading(batches.next()), older]);
        // A write that fails ends a wait for more of standard input.
        const first = Promise.race([both, newer.then(() => both)]);
        const [{ done, value }] = await unlessAborted(first, signal);
        if (done) break;
        older = newer;
        newer = writing(write(value, tally));
      }
      await newer;
    } finally {
      await Promise.allSettled([older, newer]);
      // It may be waiting for standard input, and never end.
      void batches.return(undefined);
    }
  }
}

/** Has an error say first what has failed. */
function failAs(what: string, { path }: Side) {
  return <T>(work: Promise<T>): Promise<T> =>
    work.catch((cause) => {
      const message = `${what}: ${explainError(cause, path).replaceAll(/\s+/g, " ")}`;
      throw cause instanceof DatabaseUrlError
        ? new ConfigError(message)
        : new Error(message, { cause });
    });
}

async function openSource({ url, path }: Side): Promise<Source> {
  if (url !== undefined) return openStoreSource(url);
  return path === undefined ? createNdjsonSource(process.stdin) : openNdjsonSource(path);
}

async function openTarget({ url, path }: Side, warn: (message: string) => void): Promise<Target> {
  if (url !== undefined) return openStoreTarget(url, warn);
  return path === undefined ? openStdoutTarget() : openNdjsonTarget(path);
}

function describe({ copied, present, conflicts, conflictingIds }: Tally): string {
  const done = `copied ${countOf(copied)}, and found ${formatNumber(present)} already there`;
  if (conflicts === 0) return done;
  const more = conflicts - conflictingIds.length;
  const ids = conflictingIds.join(", ") + (more > 0 ? ` and ${formatNumber(more)} more` : "");
  const left =
    conflicts === 1
      ? "1 record as it is, which has other content under the same id"
      : `${countOf(conflicts)} as they are, which have other content under the same ids`;
  return `left ${left} (${ids}); ${done}`;
}

function describeRest(tally: Tally, { name, url, path }: Side): string {
  if (url !== undefined) return describe(tally);
  return path === undefined ? `wrote ${countOf(tally.copied)}` : `${name} was not made`;
}

function countOf(records: number): string {
  return records === 1 ? "1 record" : `${formatNumber(records)} records`;
}

function countAll({ copied, present, conflicts }: Tally): number {
  return copied + present + conflicts;
}

function rateOf(tally: Tally, ms: number): string {
  return `${formatNumber((countAll(tally) / ms) * 1_000)} a second`;
}

/** A number as people read it. */
function formatNumber(value: number): string {
  return Math.round(value).toLocaleString("en");
}

/** A time in milliseconds as people read it. */
function formatDuration(ms: number): string {
  const seconds = ms / 1_000;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
