import { type Db, type Document, MongoServerSelectionError } from "mongodb";
import { StoreUnavailableError } from "./store.ts";

/**
 * Runs a command once, with a signal that aborts with the caller's, or when the command is
 * stuck. The limits of the driver and of the server (`maxTimeMS`) end it after `limitMs`; the
 * signal waits a quarter longer, so that their errors come first (nothing was sent, the server
 * gave up) and the signal ends only what the server leaves without a reply.
 *
 * It always aborts with an Error: the driver makes a TypeError of anything else, after the
 * request was sent.
 */
export async function runCommand(
  db: Db,
  command: Document,
  limitMs: number,
  caller?: AbortSignal,
): Promise<Document> {
  const controller = new AbortController();
  const leave = () => controller.abort(new Error("the caller left"));
  const giveUp = () => controller.abort(new Error(`no reply within ${limitMs} ms`));
  caller?.throwIfAborted();
  const timer = setTimeout(giveUp, limitMs * 1.25);
  caller?.addEventListener("abort", leave);
  try {
    const limited = { ...command, maxTimeMS: Math.ceil(limitMs) };
    return await db.command(limited, { signal: controller.signal });
  } finally {
    clearTimeout(timer);
    caller?.removeEventListener("abort", leave);
  }
}

/**
 * Retries once: an election ends a read, and the driver finds the new primary for the next.
 * Where it found none there is nothing to retry.
 *
 * @throws {StoreUnavailableError} it failed again
 * @throws {unknown} the reason of the caller's signal, once that has aborted
 */
export async function twice<T>(run: () => Promise<T>, caller?: AbortSignal): Promise<T> {
  try {
    return await run().catch((error) => {
      if (caller?.aborted || error instanceof MongoServerSelectionError) throw error;
      return run();
    });
  } catch (error) {
    caller?.throwIfAborted();
    throw unavailable(error);
  }
}

/** The error of an operation that surely changed nothing. */
export function unavailable(cause: unknown): StoreUnavailableError {
  return new StoreUnavailableError((cause as Error).message, { cause });
}
