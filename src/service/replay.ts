import { setTimeout as delay } from "node:timers/promises";
import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import {
  DuplicateIdError,
  type OutcomeUnknownError,
  type Store,
  StoreClosedError,
  StoreUnavailableError,
} from "../store/store.ts";

/** Pause before an insert is retried, in milliseconds. */
const pauseMs = 50;

/**
 * Settles an insert whose outcome is unknown, or whose id is taken: reads the record under the id, or
 * retries the insert.
 *
 * Only the first attempt can prove that a record was not written. Once an attempt's outcome is unknown,
 * the attempt may still be in flight, whatever later ones meet. Two things settle it: a retry stores
 * the record, or the id turns out to be taken, and reading shows whether by the same record. A rejected
 * retry settles nothing. An outcome that stays unknown may still be settled after the reply: a network
 * or a stopped server can delay an attempt, which is then a duplicate of its retry.
 *
 * @param failure the error of the first attempt
 * @param until how long to retry, by performance.now()
 * @param signal aborts when nobody waits any more
 * @returns the record that is stored under the id, or why the outcome stays unknown
 */
export async function settleInsert(
  store: Store,
  investor: Investor,
  failure: OutcomeUnknownError | DuplicateIdError,
  until: number,
  signal: AbortSignal,
): Promise<Investor | Error> {
  let call = { signal };
  let last: Error = failure;
  do {
    if (last instanceof DuplicateIdError) {
      const stored = await store.find(investor.id, call).catch((error) => {
        if (!call.signal.aborted && !(error instanceof StoreUnavailableError)) throw error;
        last = error;
      });
      if (stored) return stored;
      // Otherwise the read failed, or the record that took the id was rolled back.
    }
    // Created lazily: most retries of a create end above.
    if (call.signal === signal) {
      const timeout = AbortSignal.timeout(Math.max(0, Math.ceil(until - performance.now())));
      call = { signal: AbortSignal.any([signal, timeout]) };
    }
    try {
      await delay(pauseMs, undefined, call);
      await store.insert(investor, call.signal);
      return investor;
    } catch (error) {
      if (!call.signal.aborted) last = error as Error;
    }
  } while (!call.signal.aborted && !(last instanceof StoreClosedError));
  return last;
}
