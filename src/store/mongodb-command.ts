import { type Db, type Document, MongoServerSelectionError } from "mongodb";
import { StoreUnavailableError } from "./store.ts";

/**
 * Runs a command once, with a signal that aborts when it is stuck, or with the caller's. The
 * command itself, by the limits of the driver and of the server (`maxTimeMS`), is over after
 * `limitMs`; the signal gives them a quarter more. So what they tell is heard first (that
 * nothing was sent, that the server gave the work up), and the signal speaks only where the
 * server is silent.
 *
 * It always aborts with an Error: of anything else the driver makes a TypeError, after the
 * request went out.
 *
 * @throws {unknown} the reason of the caller's signal, once that has aborted
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
  } catch (error) {
    caller?.throwIfAborted();
    throw error;
  } finally {
    clearTimeout(timer);
    caller?.removeEventListener("abort", leave);
  }
}

/**
 * Tries again what failed: an election ends a read, and the driver finds the new primary at
 * the next. Where it found none there is nothing to try.
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

/** The error of a store that did nothing. */
export function unavailable(cause: unknown): StoreUnavailableError {
  return new StoreUnavailableError(cause instanceof Error ? cause.message : String(cause), {
    cause,
  });
}
