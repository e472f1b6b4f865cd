import { ConfigError } from "../settings/config.ts";
import { explainError } from "../store/sqlite/errors.ts";
import { DatabaseUrlError, raceWithSignal } from "../store/store.ts";
import { openStoreSource, openStoreTarget } from "./databases.ts";
import { openNdjsonSource, readRecords } from "./ndjson-source.ts";
import { openNdjsonTarget, openStdoutTarget } from "./ndjson-target.ts";
import {
  type OnFault,
  readSide,
  type Side,
  type Source,
  type Tally,
  type Target,
} from "./source-and-target.ts";

/** Interval of progress lines, in milliseconds. */
const progressIntervalMs = 5_000;

/** The target of a copy that only checks its source. */
const nowhere: Side = { name: "nowhere" };

/** How many faults of the source to print. */
const maxFaults = 100;

interface CopyOptions {
  from: string;
  /** If absent, the source is only checked. */
  to?: string | undefined;
  /** Whether to check an SQLite source for damage before reporting success. */
  findsDamage: boolean;
  environment: NodeJS.ProcessEnv;
  signal: AbortSignal;
  /** Prints a line for the user. */
  say(line: string): void;
}

/**
 * Copies all records from one store or file to another, in constant memory. What was written to a
 * store stays there even if the rest fails. Whatever is not a record, or breaks the rules, is
 * reported and skipped.
 *
 * @returns whether all records are in the target, and none was skipped
 * @throws {ConfigError} an argument is wrong, and nothing was done
 */
export async function runCopy(options: CopyOptions): Promise<boolean> {
  const { environment, signal, say } = options;
  const from = readSide("FROM", options.from, environment);
  const to = options.to === undefined ? nowhere : readSide("TO", options.to, environment);
  const reading = failAs(`cannot read ${from.name}`);
  const writing = failAs(`cannot write to ${to.name}`);
  const tally: Tally = { copied: 0, present: 0, conflicts: 0, conflictingIds: [], faults: 0 };
  const unit = from.url === undefined ? "line" : "record";
  const warn = (message: string) => say(`warning: ${message}`);
  const start = performance.now();
  let source: Source | undefined;
  let target: Target | undefined;
  let isRead = false;
  const progress = setInterval(sayProgress, progressIntervalMs);
  try {
    source = await raceWithSignal(reading(openSource(from, onFault)), signal);
    const opening = writing(openTarget(to, warn));
    // Opening a file takes no time; interrupted, it would leave the file behind.
    target = await (to.url === undefined ? opening : raceWithSignal(opening, signal));
    await copyRecords(source, target);
    isRead = true;
    if (options.findsDamage && source.findDamage) await reading(source.findDamage(signal));
    await raceWithSignal(writing(target.finish()), signal);
  } catch (error) {
    if (error instanceof ConfigError) throw error;
    const why = signal.aborted
      ? `stopped by ${signal.reason}`
      : `error: ${(error as Error).message}`;
    const next = to.url && countAll(tally) > 0 && "the same command goes on from there";
    const rest = [why, target && describeRest(target), next];
    say(rest.filter(Boolean).join("; "));
    return false;
  } finally {
    clearInterval(progress);
    // A failure here changes nothing that was reported or is durable.
    await target?.close().catch(() => {});
  }
  const others = (target.before ?? 0) - tally.present - tally.conflicts;
  if (others > 0) say(`warning: ${to.name} has ${countOf(others)} that ${from.name} does not have`);
  const isWhole = tally.conflicts === 0 && tally.faults === 0;
  const takenMs = performance.now() - start;
  const taken = `, in ${formatDuration(takenMs)} (${rateOf(tally, takenMs)})`;
  say(isWhole ? describe() + taken : `error: ${describe()}`);
  return isWhole;

  function onFault(which: string, why: string): void {
    tally.faults += 1;
    if (tally.faults <= maxFaults) say(`error: ${unit} ${which}: ${why}`);
  }

  function sayProgress(): void {
    if (source === undefined || target === undefined) return;
    const takenMs = performance.now() - start;
    const part = source.partRead?.() ?? 0;
    const left = part > 0 ? formatDuration(takenMs / part - takenMs) : "unknown";
    const step = isRead ? "finishing" : `${rateOf(tally, takenMs)}, time left: ${left}`;
    say(`${countOf(countAll(tally))}, ${step}`);
  }

  /** Reads each batch while the two before it are being written. */
  async function copyRecords({ batches }: Source, { write }: Target): Promise<void> {
    let older = Promise.resolve();
    let newer = older;
    try {
      for (;;) {
        const both = Promise.all([reading(batches.next()), older]);
        // A failed write ends the wait for standard input.
        const first = Promise.race([both, newer.then(() => both)]);
        const [{ done, value }] = await raceWithSignal(first, signal);
        if (done) break;
        older = newer;
        newer = writing(write(value, tally));
      }
      await newer;
    } finally {
      await Promise.allSettled([older, newer]);
      // Not awaited: it may wait for standard input forever.
      void batches.return(undefined);
    }
  }

  function describe(): string {
    const { faults } = tally;
    const named = faults > maxFaults ? `, of which the first ${maxFaults} are named above` : "";
    const verb = to === nowhere ? "found" : "left out";
    const left = faults > 0 ? `${verb} ${countOf(faults, `wrong ${unit}`)}${named}; ` : "";
    return left + (to === nowhere ? `read ${countOf(tally.copied)}` : describeCopied(tally));
  }

  function describeRest({ isThere }: Target): string {
    if (to.url !== undefined) return describe();
    if (to.path === undefined)
      return `${to === nowhere ? "read" : "wrote"} ${countOf(tally.copied)}`;
    if (!isThere?.()) return `${to.name} was not made`;
    return `${to.name} is there and whole, but may not survive a power cut: move it away to repeat`;
  }
}

/** Prefixes errors with what has failed. */
function failAs(what: string) {
  return <T>(work: Promise<T>): Promise<T> =>
    work.catch((cause) => {
      const message = `${what}: ${explainError(cause).replaceAll(/\s+/g, " ")}`;
      throw cause instanceof DatabaseUrlError
        ? new ConfigError(message)
        : new Error(message, { cause });
    });
}

async function openSource({ url, path }: Side, onFault: OnFault): Promise<Source> {
  if (url !== undefined) return openStoreSource(url, onFault);
  if (path === undefined) return { batches: readRecords(process.stdin, onFault) };
  return openNdjsonSource(path, onFault);
}

async function openTarget(to: Side, warn: (message: string) => void): Promise<Target> {
  if (to === nowhere) return createCounter();
  if (to.url !== undefined) return openStoreTarget(to.url, warn);
  return to.path === undefined ? openStdoutTarget() : openNdjsonTarget(to.path);
}

function createCounter(): Target {
  return {
    async write(investors, tally) {
      tally.copied += investors.length;
    },
    async finish() {},
    async close() {},
  };
}

function describeCopied({ copied, present, conflicts, conflictingIds }: Tally): string {
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

function countOf(count: number, unit = "record"): string {
  return count === 1 ? `1 ${unit}` : `${formatNumber(count)} ${unit}s`;
}

function countAll({ copied, present, conflicts }: Tally): number {
  return copied + present + conflicts;
}

function rateOf(tally: Tally, ms: number): string {
  return `${formatNumber((countAll(tally) / ms) * 1_000)} a second`;
}

function formatNumber(value: number): string {
  return Math.round(value).toLocaleString("en");
}

/** Formats milliseconds for people. */
function formatDuration(ms: number): string {
  const seconds = ms / 1_000;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
