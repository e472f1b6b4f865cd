import { randomUUID } from "node:crypto";
import { setTimeout as delay } from "node:timers/promises";
import { create } from "@bufbuild/protobuf";
import { type Investor, InvestorSchema, InvestorType } from "../../gen/investor/v1/investor_pb.js";
import { type StoreOptions, StoreUnavailableError } from "./store.ts";

/** Interval of the checks, in milliseconds. */
const intervalMs = 1_000;

/** The last create that the database rejected; `at` is from `performance.now()`. */
export interface Refusal {
  error: Error;
  at: number;
}

/**
 * Tracks whether creates succeed: after the database rejects one, checks once a second until they do.
 *
 * @param look rejects if a create would be rejected; gets the last rejection; leaves no record behind
 */
export function followWritable(
  look: (last?: Refusal) => Promise<void>,
  onWritable: StoreOptions["onWritable"],
) {
  const stop = new AbortController();
  const { signal } = stop;
  let last: Refusal | undefined;
  let isRefused = false;
  let isFollowing = false;

  async function follow(): Promise<void> {
    isFollowing = true;
    do {
      const refusal = await look(last).then(
        () => undefined,
        (error: Error) => error,
      );
      if (signal.aborted) return;
      isRefused = refusal !== undefined;
      if (!isRefused) last = undefined;
      onWritable?.(refusal);
      // Waits after the last check too, so that creates which alternately fail and succeed add no checks.
      await delay(intervalMs, undefined, { ref: false, signal }).catch(() => {});
    } while (isRefused && !signal.aborted);
    isFollowing = false;
  }

  return {
    /** Checks once, and goes on while creates are rejected. */
    begin: () => void follow(),
    /** Records the outcomes of one batch of inserts. */
    note(outcomes: readonly unknown[]): void {
      if (outcomes.includes(undefined)) {
        last = undefined;
        isRefused = false;
        onWritable?.();
      }
      const error = outcomes.find((each) => each instanceof StoreUnavailableError);
      if (error === undefined) return;
      last = { error, at: performance.now() };
      isRefused = true;
      if (!isFollowing) void follow();
    },
    close: () => stop.abort(),
  };
}

/** A record to try an insert with, under a new id. */
export function sampleInvestor(): Investor {
  return create(InvestorSchema, {
    id: randomUUID(),
    type: InvestorType.INDIVIDUAL,
    firstName: "Ada",
    middleName: "King",
    lastName: "Lovelace",
    addressLine1: "12 St James's Square",
    addressLine2: "First floor",
    city: "London",
    state: "England",
    zipCode: "SW1Y 4JH",
    country: "gb",
    language: "en",
  });
}
