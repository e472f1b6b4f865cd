import { overloaded } from "../service/errors.ts";

/**
 * Decides from the headers alone, before a byte of the body is read, whether a call may
 * come in. Every transport asks it.
 */
export interface Gate {
  /**
   * Takes a place for a call. The caller gives it back, once, by calling what this
   * returns when the answer has left.
   *
   * @throws {ConnectError} OVERLOADED, if no place is free
   */
  enter(): () => void;
  /** How many calls are inside. */
  readonly inFlight: number;
  /** Resolves when no call is inside. */
  whenEmpty(): Promise<void>;
}

/** Makes a gate with places for `maxInFlight` calls. */
export function createGate({ maxInFlight }: { maxInFlight: number }): Gate {
  let inFlight = 0;
  let empty: PromiseWithResolvers<void> | undefined;

  function leave(): void {
    inFlight -= 1;
    if (inFlight === 0) {
      empty?.resolve();
      empty = undefined;
    }
  }

  return {
    enter() {
      if (inFlight >= maxInFlight) throw overloaded();
      inFlight += 1;
      return leave;
    },
    get inFlight() {
      return inFlight;
    },
    async whenEmpty() {
      if (inFlight === 0) return;
      empty ??= Promise.withResolvers();
      await empty.promise;
    },
  };
}
