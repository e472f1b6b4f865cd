import { overloaded } from "../service/errors.ts";

/** A limited number of places. */
export interface Places {
  /**
   * Takes one. The caller gives it back, once, by calling what this returns.
   *
   * @throws {ConnectError} OVERLOADED, if none is free
   */
  take(): () => void;
  /** How many are taken. */
  readonly taken: number;
  /** Resolves when none is taken. */
  whenEmpty(): Promise<void>;
}

/** Makes `count` places. */
export function createPlaces(count: number): Places {
  let taken = 0;
  let empty: PromiseWithResolvers<void> | undefined;

  function giveBack(): void {
    taken -= 1;
    if (taken === 0) {
      empty?.resolve();
      empty = undefined;
    }
  }

  return {
    take() {
      if (taken >= count) throw overloaded();
      taken += 1;
      return giveBack;
    },
    get taken() {
      return taken;
    },
    async whenEmpty() {
      if (taken === 0) return;
      empty ??= Promise.withResolvers();
      await empty.promise;
    },
  };
}
