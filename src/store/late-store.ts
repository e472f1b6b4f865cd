import type { Logger } from "pino";
import { type Store, StoreUnavailableError } from "./store.ts";

/** Interval of checks, in milliseconds. */
const checkIntervalMs = 1_000;

/** Timeout of a check, in milliseconds. */
const checkTimeoutMs = 5_000;

export type LateStore = ReturnType<typeof createLateStore>;

/** Creates a store that can be handed out before its database is open. Until then, all calls fail. */
export function createLateStore(log: Logger) {
  const fail = () => Promise.reject(new StoreUnavailableError("the database is being opened"));
  let opened: Store = { insert: fail, find: fail, list: fail, ping: fail, close: async () => {} };
  let isServing: boolean | undefined;
  let stopped = false;

  const store: Store = {
    insert: (...args) => opened.insert(...args),
    find: (...args) => opened.find(...args),
    list: (...args) => opened.list(...args),
    ping: (signal) => opened.ping(signal),
    close: () => opened.close(),
  };

  async function check(): Promise<void> {
    const signal = AbortSignal.timeout(checkTimeoutMs);
    const failure = await store
      .ping(signal)
      .catch((error) =>
        error === signal.reason ? new Error(`no reply within ${checkTimeoutMs} ms`) : error,
      );
    if (stopped) return;
    const wasServing = isServing;
    isServing = failure === undefined;
    if (failure !== undefined && wasServing !== false) {
      log.error({ err: failure }, "the store is not ready");
    } else if (isServing && wasServing === false) log.info("the store is ready again");
    setTimeout(check, checkIntervalMs);
  }

  return {
    store,
    /** Whether the last check found that it can serve. */
    isReady: () => isServing === true && !stopped,
    /** Serves from this store, from now on. Resolves once it has been checked for the first time. */
    set(value: Store): Promise<void> {
      opened = value;
      return check();
    },
    /** Ends the checks; from now on, it is not ready. */
    stopChecks(): void {
      stopped = true;
    },
  };
}
