import { existsSync } from "node:fs";
import { ConfigError } from "../config-error.ts";
import { explainError } from "../store/sqlite/sqlite-errors.ts";
import { raceWithSignal } from "../store/store.ts";
import { openStoreSource, openStoreTarget } from "./databases.ts";
import { openNdjsonSource, readRecords } from "./ndjson-source.ts";
import { openNdjsonTarget, openStdoutTarget } from "./ndjson-target.ts";
import { readSide, type Side, type Source, type Tally, type Target } from "./source-and-target.ts";

/** Interval of progress lines, in milliseconds. */
const progressIntervalMs = 5_000;

/** The target of a copy that only checks its source. */
const nowhere = { kind: "nowhere", name: "nowhere" } as const;

/** How many of the records that are left out to name. */
const maxNamed = 100;

interface CopyOptions {
  from: string;
  /** If absent, the source is only checked. */
  to?: string | undefined;
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
  const reading = failAs(`cannot read ${from.name}`, ReadError);
  const writing = failAs(`cannot write to ${to.name}`);
  const tally: Tally = { copied: 0, present: 0, leftOut: 0, leaveOut };
  const warn = (message: string) => say(`warning: ${message}`);
  const start = performance.now();
  let target: Target | undefined;
  const progress = setInterval(sayProgress, progressIntervalMs);
  try {
    const source = await raceWithSignal(reading(openSource(from, tally)), signal);
    const opening = writing(openTarget(to, warn));
    // Opening a file takes no time; interrupted, it would leave the file behind.
    target = await (to.kind === "file" ? opening : raceWithSignal(opening, signal));
    await copyRecords(source, target);
    await raceWithSignal(writing(target.finish()), signal);
  } catch (error) {
    if (error instanceof ConfigError) throw error;
    const why = signal.aborted
      ? `stopped by ${signal.reason}`
      : `error: ${(error as Error).message}`;
    const isStore = to.kind === "sqlite" || to.kind === "mongodb";
    const canGoOn = isStore && countAll(tally) > 0 && !(error instanceof ReadError);
    const next = canGoOn && "the same command goes on from there";
    const rest = [why, target && describeRest(), next];
    say(rest.filter(Boolean).join("; "));
    return false;
  } finally {
    clearInterval(progress);
    // A failure here changes nothing that was reported or is durable.
    await target?.close().catch(() => {});
  }
  const isWhole = tally.leftOut === 0;
  const takenMs = performance.now() - start;
  const taken = `, in ${(takenMs / 1_000).toFixed(1)} s (${rateOf(tally, takenMs)})`;
  say(isWhole ? describe() + taken : `error: ${describe()}`);
  return isWhole;

  function leaveOut(which: string, why: string): void {
    tally.leftOut += 1;
    if (tally.leftOut <= maxNamed) say(`error: ${which}: ${why}`);
  }

  function sayProgress(): void {
    if (target === undefined) return;
    say(`${countOf(countAll(tally))}, ${rateOf(tally, performance.now() - start)}`);
  }

  /** Reads each batch while the two before it are being written. */
  async function copyRecords(batches: Source, { write }: Target): Promise<void> {
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
    const { copied, present, leftOut } = tally;
    const named = leftOut > maxNamed ? `, of which the first ${maxNamed} are listed above` : "";
    const left = leftOut > 0 ? `left out ${countOf(leftOut)}${named}; ` : "";
    if (to === nowhere) return `${left}read ${countOf(copied)}`;
    return `${left}copied ${countOf(copied)}, and found ${formatNumber(present)} already there`;
  }

  function describeRest(): string {
    if (to.kind === "standard") return `wrote ${countOf(tally.copied)}`;
    if (to.kind !== "file") return describe();
    return `${to.name} ${existsSync(to.path) ? "is there" : "was not made"}`;
  }
}

/** A failure of FROM, which the same command would meet again. */
class ReadError extends Error {}

/** Prefixes errors with what has failed. */
function failAs(what: string, Failure: typeof ReadError = Error) {
  return <T>(work: Promise<T>): Promise<T> =>
    work.catch((cause) => {
      const message = `${what}: ${explainError(cause).replaceAll(/\s+/g, " ")}`;
      throw cause instanceof ConfigError
        ? new ConfigError(message)
        : new Failure(message, { cause });
    });
}

async function openSource(from: Side, tally: Tally): Promise<Source> {
  if (from.kind === "standard") return readRecords(process.stdin, tally);
  return from.kind === "file" ? openNdjsonSource(from.path, tally) : openStoreSource(from, tally);
}

async function openTarget(
  to: Side | typeof nowhere,
  warn: (message: string) => void,
): Promise<Target> {
  if (to.kind === "nowhere") return createCounter();
  if (to.kind === "standard") return openStdoutTarget();
  return to.kind === "file" ? openNdjsonTarget(to.path) : openStoreTarget(to, warn);
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

function countOf(count: number): string {
  return count === 1 ? "1 record" : `${formatNumber(count)} records`;
}

function countAll({ copied, present }: Tally): number {
  return copied + present;
}

function rateOf(tally: Tally, ms: number): string {
  return `${formatNumber((countAll(tally) / ms) * 1_000)} a second`;
}

function formatNumber(value: number): string {
  return Math.round(value).toLocaleString("en");
}
