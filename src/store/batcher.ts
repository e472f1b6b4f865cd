import { OutcomeUnknownError, StoreClosedError, type StoreObserver } from "./store.ts";

/**
 * The most items per batch: as many of the largest records take some MiB, and MongoDB accepts 48
 * MB.
 */
const maxItems = 512;

/**
 * Groups calls into batches: while one is at the database, the next one gathers. A lone call never
 * waits for others, and many share a round trip.
 *
 * The number of calls in flight bounds the queue; the signal of each call bounds its wait.
 *
 * @param run sends one batch to the database. Resolves with one outcome per item, in order; if it
 * rejects, the whole batch fails with that error. Must bound its own time, since the next batch
 * waits for it.
 * @param ready awaited before each batch; items can still be taken back meanwhile. If it rejects,
 * every queued item fails with that error. Optional.
 */
export function createBatcher<Item, Result>(
  operation: "insert" | "find",
  observe: StoreObserver,
  run: (items: Item[]) => Promise<readonly (Result | Error)[]>,
  ready?: () => Promise<void>,
) {
  // An array: V8 is slow to collect what has passed through a busy Set.
  const queue: ({ item: Item } & PromiseWithResolvers<Result>)[] = [];
  let running: Promise<void> | undefined;
  let isClosed = false;

  async function drain(): Promise<void> {
    while (queue.length > 0) {
      try {
        if (ready) await ready();
      } catch (reason) {
        for (const entry of queue.splice(0)) entry.reject(reason);
        continue;
      }
      const batch = queue.splice(0, maxItems);
      if (batch.length === 0) continue;
      const start = performance.now();
      try {
        const outcomes = await run(batch.map((entry) => entry.item));
        for (const [i, entry] of batch.entries()) {
          const outcome = outcomes[i] as Result | Error;
          if (outcome instanceof Error) entry.reject(outcome);
          else entry.resolve(outcome);
        }
      } catch (reason) {
        for (const entry of batch) entry.reject(reason);
      } finally {
        observe(operation, performance.now() - start, batch.length);
      }
    }
    running = undefined;
  }

  return {
    /**
     * Queues an item and resolves with its result. If the signal aborts while the item waits, the item
     * is taken back and fails with the signal's reason; an insert that was sent has an unknown outcome.
     *
     * @throws {StoreClosedError} the batcher is closed
     */
    async add(item: Item, signal?: AbortSignal): Promise<Result> {
      if (isClosed) throw new StoreClosedError();
      signal?.throwIfAborted();
      const entry = { item, ...Promise.withResolvers<Result>() };
      const onAbort = () => {
        const cause: unknown = signal?.reason;
        const index = queue.indexOf(entry);
        if (index !== -1) queue.splice(index, 1);
        const isUnknown = index === -1 && operation === "insert";
        entry.reject(
          isUnknown ? new OutcomeUnknownError("the caller stopped waiting", { cause }) : cause,
        );
      };
      signal?.addEventListener("abort", onAbort);
      queue.push(entry);
      running ??= drain();
      try {
        return await entry.promise;
      } finally {
        signal?.removeEventListener("abort", onAbort);
      }
    },

    /** Refuses new items and resolves when all accepted ones are settled. */
    async close(): Promise<void> {
      isClosed = true;
      await running;
    },
  };
}
