import type { Investor } from "../../gen/investor/v1/investor_pb.js";

/** Where records come from. */
export interface Source {
  /**
   * The records in batches, each read by itself; those that are added meanwhile may be missing.
   *
   * @throws {Error} in plain words, after the last batch that could be read
   */
  readonly batches: AsyncIterable<Investor[]>;
  /** The part of it that was read, from 0 to 1; undefined if its end is not known. */
  partRead(): number | undefined;
  /** May be called again, and while a batch is read, which then fails. */
  close(): Promise<void>;
}

/** What became of the records. */
export interface Tally {
  copied: number;
  /** Those that were there already, with the same content. */
  present: number;
  /** Those whose id another record has. */
  conflicts: number;
  /** The first ids of those. */
  conflictingIds: string[];
  /** The part of all that is done, from 0 to 1; undefined if the end is not known. */
  part: number | undefined;
}

/** How many records have been dealt with. */
export function countAll({ copied, present, conflicts }: Tally): number {
  return copied + present + conflicts;
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
   * Makes durable, and shows under its name, what was written, and closes.
   *
   * @throws {Error} in plain words
   */
  finish(): Promise<void>;
  /** Closes if it was not finished; nothing stays of a file. */
  close(): Promise<void>;
}

/** How many batches are written while the next one is read. */
const maxWriting = 2;

/**
 * Copies all records, in constant memory, and adds them to the tally. What was written stays,
 * also if it fails or the signal aborts, which it does between batches.
 *
 * @throws {Error} in plain words
 */
export async function copyRecords(
  source: Source,
  target: Target,
  tally: Tally,
  signal: AbortSignal,
): Promise<void> {
  const writing: Promise<void>[] = [];
  try {
    for await (const batch of source.batches) {
      if (writing.length === maxWriting) {
        await writing[0];
        writing.shift();
      }
      signal.throwIfAborted();
      const part = source.partRead();
      const write = target.write(batch, tally).then(() => {
        tally.part = part;
      });
      // A source that has nothing more for now must not hide it.
      write.catch(() => void source.close());
      writing.push(write);
    }
  } finally {
    await Promise.allSettled(writing);
    // The first that failed says more than what came after it.
    await Promise.all(writing);
  }
  await target.finish();
}
