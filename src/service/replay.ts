import { setTimeout as delay } from "node:timers/promises";
import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import {
  DuplicateIdError,
  type OutcomeUnknownError,
  type Store,
  StoreClosedError,
  StoreUnavailableError,
} from "../store/store.ts";

/** Pause before an insert is sent again, in milliseconds. */
const pauseMs = 50;

/**
 * Settles an insert whose outcome is open, or whose id is taken: reads back what has the id, or
 * sends the insert again.
 *
 * Only the first attempt can show that a record was not written. Once an attempt is open, it may be in
 * flight whatever later ones meet. Two things settle it: a replay stores the record, or the id is taken,
 * and what is read under it is the same or not. A replay that is refused settles nothing. An outcome
 * that stays open may still be settled after the reply: a network or a stopped server can hold an
 * attempt back, and a replay under the same id makes it a duplicate.
 *
 * @param failure what the first attempt met
 * @param until how long to send it again, by performance.now()
 * @param signal aborts when nobody waits for it any more
 * @returns the record that is stored under the id, or why its outcome stays open
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
      // Else it could not be read, or the record that took the id was rolled back.
    }
    // Created lazily: most repeats of a create end above.
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
