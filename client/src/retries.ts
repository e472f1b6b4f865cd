import { cancelled, codeOf, type Failure, type InvestorError } from "./error.ts";

/**
 * The longest attempt, in ms, where another one can follow: the service, which gives up after
 * 10,000 by default, can still reply with the reason.
 */
const maxAttemptMs = 12_000;

/** The shortest attempt that another one can follow, in ms. */
const minAttemptMs = 250;

/** The shortest and the longest wait between two attempts of a client that nobody asks for one, in ms. */
const minWaitMs = 200;
const maxWaitMs = 5_000;

/**
 * How many repeats a client has at once of calls that were failed, or left without a reply,
 * and what each call that succeeds gives back of one.
 */
const maxTokens = 500;
const tokensPerSuccess = 0.2;

const deadlineExceeded = codeOf("DEADLINE_EXCEEDED");
const retryable = [codeOf("UNAVAILABLE"), deadlineExceeded];

/** How often and how long a call is tried. */
export interface Limits {
  /** How often it is repeated at most. */
  retries: number;
  /** Its deadline, in ms from now. */
  timeoutMs: number;
  /** Ends it, also between two attempts. */
  signal: AbortSignal | undefined;
  /** Creates an error of this call. */
  toError(failure: Failure): InvestorError;
}

/** What came of an attempt. */
export type Outcome<T> = { reply: T } | { failure: Failure };

/** Creates what runs the calls of a client, all with one budget of repeats. */
export function createRetries() {
  // As in gRPC's retryThrottling: if the service fails for all, repeats do not multiply the load.
  let tokens = maxTokens;

  /**
   * Tries a call until it succeeds, or another attempt cannot help or has no time left.
   *
   * @param attempt one attempt with its time, in ms
   * @throws {InvestorError} that of the last attempt, or CANCELLED
   */
  return async <T>(
    attempt: (timeoutMs: number) => Promise<Outcome<T>>,
    { retries, timeoutMs, signal, toError }: Limits,
  ): Promise<T> => {
    const end = performance.now() + timeoutMs;
    for (let count = 0; ; count += 1) {
      if (signal?.aborted) throw toError(cancelled(signal));
      const leftMs = end - performance.now();
      const isLast = count >= retries;
      const hasAll = isLast || leftMs < 2 * minAttemptMs;
      const outcome = await attempt(hasAll ? leftMs : Math.min(leftMs / 2, maxAttemptMs));
      if ("reply" in outcome) {
        tokens = Math.min(maxTokens, tokens + tokensPerSuccess);
        return outcome.reply;
      }
      if (signal?.aborted) throw toError(cancelled(signal));
      const error = toError(outcome.failure);
      const restMs = end - performance.now();
      const waitMs = toWaitMs(error.retryDelayMs, count, restMs - minAttemptMs);
      const isHopeless = !retryable.includes(error.code) || restMs <= waitMs;
      // A connection that fails costs nobody anything, however long the service is down.
      const cost = outcome.failure.isUnanswered && error.code !== deadlineExceeded ? 0 : 1;
      if (isLast || isHopeless || tokens < cost) {
        if (count > 0) error.message += ` (after ${count + 1} attempts)`;
        throw error;
      }
      tokens -= cost;
      await wait(waitMs, signal);
    }
  };
}

/**
 * The wait after some repeats: twice as long each time, and never less than it is asked for, which
 * is not made longer than `latestMs`.
 */
function toWaitMs(askedMs = 0, count: number, latestMs: number): number {
  // Callers that failed together do not come back together.
  const jitter = 1 + Math.random();
  const asked = Math.max(askedMs, Math.min(askedMs * jitter, latestMs));
  return Math.max(asked, Math.min(minWaitMs * 2 ** count * jitter, maxWaitMs));
}

/** Resolves after a time, or as soon as the signal aborts. */
function wait(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    signal?.addEventListener("abort", end);
  });
}
