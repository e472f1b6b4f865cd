import { cancelled, codeOf, type Failure, type InvestorError } from "./error.ts";

/**
 * The longest attempt, in ms, if another can follow: the service, which gives up after 10,000 by
 * default, can still reply with its reason.
 */
const maxAttemptMs = 12_000;

/** The shortest attempt if another can follow, in ms. */
const minAttemptMs = 250;

/** The shortest and longest wait between attempts, in ms, if nobody asks for one. */
const minWaitMs = 200;
const maxWaitMs = 5_000;

/**
 * How many retries a client may spend on calls that failed or got no reply, and what share of one
 * each successful call earns back.
 */
const maxTokens = 500;
const tokensPerSuccess = 0.2;

const deadlineExceeded = codeOf("DEADLINE_EXCEEDED");
const retryable = [codeOf("UNAVAILABLE"), deadlineExceeded];

/** Limits of one call. */
export interface Limits {
  /** The most retries. */
  retries: number;
  /** Deadline, in ms from now. */
  timeoutMs: number;
  /** Ends the call, even between two attempts. */
  signal: AbortSignal | undefined;
  toError(failure: Failure): InvestorError;
}

/** The outcome of an attempt. */
export type Outcome<T> = { reply: T } | { failure: Failure };

/** Creates a function that runs the calls of a client, with a shared budget of retries. */
export function createRetries() {
  // Like gRPC's retryThrottling: if the service fails for everybody, retries do not multiply the load.
  let tokens = maxTokens;

  /**
   * Tries a call until it succeeds, or another attempt would be useless or has no time left.
   *
   * @param attempt makes one attempt, within a time in ms
   * @throws {InvestorError} the last attempt's, or CANCELLED
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
      // A failed connection costs nobody anything, however long the service is down.
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
 * The wait before the next retry: doubles each time, and is never less than asked for. Jitter
 * extends the asked wait only up to `latestMs`.
 */
function toWaitMs(askedMs = 0, count: number, latestMs: number): number {
  // Keeps callers that failed together from returning together.
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
