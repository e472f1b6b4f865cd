import { SingleBar } from "cli-progress";
import type { Investor } from "../../gen/investor/v1/investor_pb.js";

/** Where records come from. */
export interface Source {
  /**
   * The records in batches; those that are added meanwhile may be missing. Its end releases it.
   *
   * @throws {Error} in plain words, after the last batch that could be read
   */
  readonly batches: AsyncIterable<Investor[]>;
  /** The part of it that was read, from 0 to 1; undefined if its end is not known. */
  partRead(): number | undefined;
}

/** Where records go. */
export interface Target {
  /**
   * Writes records and adds them to the tally, also if others of the batch fail. A database has
   * them on the disk when it resolves.
   *
   * @throws {Error} in plain words
   */
  write(investors: Investor[], tally: Tally): Promise<void>;
  /**
   * Releases everything. If all records are written, a file becomes durable under its name; if not,
   * nothing stays of it.
   *
   * @throws {Error} in plain words
   */
  close(isWhole: boolean): Promise<void>;
}

/** How far a copy is. */
export interface Tally {
  copied: number;
  /** Records that were there already, with the same content. */
  present: number;
  /** Records whose id another record has, and the first of these ids. */
  conflicts: number;
  conflictingIds: string[];
  /** The part of all that is done, from 0 to 1; undefined if the end is not known. */
  part: number | undefined;
}

/** The number of records that were dealt with. */
export function countAll({ copied, present, conflicts }: Tally): number {
  return copied + present + conflicts;
}

/**
 * Copies all records, in constant memory, and adds them to the tally; a batch is read while the one
 * before it is written. What was written stays, also if it fails, or if the signal aborts, which
 * ends it between two batches.
 *
 * @param onFailure called when a write has failed, while the source may be waiting for more
 * @throws {Error} in plain words
 */
export async function copyRecords(
  { batches, partRead }: Source,
  target: Target,
  tally: Tally,
  signal: AbortSignal,
  onFailure: () => void,
): Promise<void> {
  let writing: Promise<void> | undefined;
  try {
    for await (const batch of batches) {
      await writing;
      signal.throwIfAborted();
      tally.part = partRead();
      writing = target.write(batch, tally);
      writing.catch(onFailure);
    }
  } finally {
    // If both fail, this is what failed first.
    await writing;
  }
}

const barIntervalMs = 200;
const lineIntervalMs = 5_000;

/**
 * Shows at intervals how far a copy is: on a terminal by a bar, elsewhere by lines.
 *
 * @param terminal standard error, if it is a terminal to draw on
 * @returns what ends it
 */
export function showProgress(
  tally: Tally,
  say: (line: string) => void,
  terminal: NodeJS.WritableStream | undefined,
): () => void {
  const start = performance.now();

  function state() {
    const seconds = (performance.now() - start) / 1_000;
    const { part } = tally;
    const left = part ? inTime(seconds / part - seconds) : "unknown";
    const count = countAll(tally);
    return { count: inDigits(count), rate: inDigits(count / seconds), left };
  }

  const bar =
    terminal &&
    new SingleBar({
      stream: terminal,
      format: "{bar} {percentage} % | {count} records | {rate} a second | time left: {left}",
      // A cursor that is hidden would stay so if the process is killed.
      hideCursor: false,
      clearOnComplete: true,
    });
  bar?.start(1, 0, state());
  const show = () => {
    const { count, rate, left } = state();
    if (bar) bar.update(tally.part ?? 0, { count, rate, left });
    else say(`${count} records, ${rate} a second, time left: ${left}`);
  };
  const timer = setInterval(show, bar ? barIntervalMs : lineIntervalMs);
  return () => {
    clearInterval(timer);
    bar?.stop();
  };
}

/** A number as people read it. */
export function inDigits(value: number): string {
  return Math.round(value).toLocaleString("en");
}

/** A time in seconds as people read it. */
export function inTime(seconds: number): string {
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
