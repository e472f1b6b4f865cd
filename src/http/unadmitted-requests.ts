import type { EventEmitter } from "node:events";
import { limits } from "../limits.ts";

/** A connection that has never carried an admitted call. */
interface Stranger {
  end(reason: "unadmitted_requests"): void;
}

export type Strangers = ReturnType<typeof createStrangers>;

/**
 * Limits the requests that strangers have open. Beyond, one that has several open is closed: the one
 * that has had them for longest, so that callers with credentials get in, or in a flood the one
 * whose request is new.
 */
export function createStrangers() {
  const openOf = new Map<Stranger, number>();
  /** Those with more than one, and when they opened their second, by performance.now(); in this order. */
  const severalSince = new Map<Stranger, number>();
  let open = 0;
  let hasMadeRoom = false;

  function change(stranger: Stranger, by: 1 | -1): void {
    const own = (openOf.get(stranger) ?? 0) + by;
    open += by;
    openOf.set(stranger, own);
    if (own === 2 && by > 0) severalSince.set(stranger, performance.now());
    if (own === 1) severalSince.delete(stranger);
    if (own === 0) openOf.delete(stranger);
  }

  /** Stops counting the requests of one that is no stranger any more, or has ended. */
  function forget(stranger: Stranger): void {
    open -= openOf.get(stranger) ?? 0;
    openOf.delete(stranger);
    severalSince.delete(stranger);
  }

  function closeOne(newest: Stranger): void {
    const [[oldest, since] = [newest, 0]] = severalSince;
    // Once per turn of the event loop: Node.js frees what it held only after that.
    const makesRoom = performance.now() - since > limits.strangerSafeMs && !hasMadeRoom;
    const chosen = makesRoom ? oldest : newest;
    if (!severalSince.has(chosen)) return;
    forget(chosen);
    chosen.end("unadmitted_requests");
    if (!makesRoom) return;
    hasMadeRoom = true;
    setImmediate(() => {
      hasMadeRoom = false;
    });
  }

  return {
    /** Counts a request until its response or stream closes. */
    count(stranger: Stranger, response: EventEmitter): void {
      change(stranger, 1);
      response.once("close", () => {
        if (openOf.has(stranger)) change(stranger, -1);
      });
      if (open > limits.strangerRequests) closeOne(stranger);
    },
    forget,
  };
}
