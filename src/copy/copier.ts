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
   * Writes records after those of earlier calls, and adds them to the tally, also if others of the
   * batch fail. A database has them on the disk when it resolves.
   *
   * @throws {Error} in plain words
   */
  write(investors: Investor[], tally: Tally): Promise<void>;
  /**
   * Makes durable, and shows under its name, what was written.
   *
   * @throws {Error} in plain words
   */
  finish(): Promise<void>;
  /** Releases everything. Nothing stays of a file that was not finished. */
  close(): Promise<void>;
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

/** How many batches are written while the next one is read. */
const maxWriting = 2;

/**
 * Copies all records, in constant memory, and adds them to the tally. What was written stays, also
 * if it fails, or if the signal aborts, which ends it between two batches.
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
  const writing: Promise<void>[] = [];
  try {
    for await (const batch of batches) {
      if (writing.length === maxWriting) {
        await writing[0];
        writing.shift();
      }
      signal.throwIfAborted();
      tally.part = partRead();
      const write = target.write(batch, tally);
      write.catch(onFailure);
      writing.push(write);
    }
  } finally {
    await Promise.allSettled(writing);
    // The first failure says more than those that came after it.
    await Promise.all(writing);
  }
}

const barIntervalMs = 200;
const lineIntervalMs = 5_000;
const barWidth = 20;

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
  const clearLine = "\r\x1b[K";

  function show(): void {
    const seconds = (performance.now() - start) / 1_000;
    const { part = 0 } = tally;
    const count = countAll(tally);
    const left = part > 0 ? inTime(seconds / part - seconds) : "unknown";
    const line = `${inDigits(count)} records, ${inDigits(count / seconds)} a second, time left: ${left}`;
    const bar = "█".repeat(Math.round(part * barWidth)).padEnd(barWidth, "░");
    if (terminal) terminal.write(`${clearLine}${bar} ${Math.floor(part * 100)} %, ${line}`);
    else say(line);
  }

  if (terminal) show();
  const timer = setInterval(show, terminal ? barIntervalMs : lineIntervalMs);
  return () => {
    clearInterval(timer);
    terminal?.write(clearLine);
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
