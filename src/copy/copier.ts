import type { Source, Tally, Target } from "./endpoint.ts";

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
