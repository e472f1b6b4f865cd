import { OutcomeUnknownError, StoreClosedError, type StoreObserver } from "./store.ts";

/**
 * The largest number of items in a batch: so many of the largest records weigh some MiB, and MongoDB
 * accepts 48 MB at once.
 */
const maxItems = 512;

/**
 * Joins calls into batches: while one batch is at the database the next one gathers,
 * so that a lone call waits for nobody and a crowd shares a round trip.
 *
 * The queue is bounded by the calls that the service admits, and each wait by its signal.
 *
 * @param run sends one batch to the database. It resolves with a result or an error for each item, in
 * order; if it rejects, all of them fail with that error. It has to end by itself, since the next batch
 * waits for it.
 * @param ready resolves once a batch can be sent; until then items can be taken back. If it rejects,
 * every item that waits fails with that error. Batches can always be sent if it is absent.
 */
export function createBatcher<Item, Result>(
  operation: "insert" | "find",
  observe: StoreObserver,
  run: (items: Item[]) => Promise<readonly (Result | Error)[]>,
  ready?: () => Promise<void>,
) {
  // An array, since V8 keeps what has passed through a busy Set alive for long.
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
     * Queues an item and resolves with its result. If the signal aborts while the item waits, it is
     * taken back. It fails with the signal's reason, but an insert that was sent has an open outcome.
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
        const isOpen = index === -1 && operation === "insert";
        entry.reject(
          isOpen ? new OutcomeUnknownError("the caller did not wait", { cause }) : cause,
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
