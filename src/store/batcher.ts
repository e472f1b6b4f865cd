import { StoreClosedError } from "./store.ts";

interface BatcherOptions<Item, Result> {
  /**
   * Sends one batch to the database. It resolves with a result or an error for each item, in order;
   * if it rejects, all of them fail with that error. It has to end by itself, since the next batch
   * waits for it.
   */
  run(items: Item[]): Promise<readonly (Result | Error)[]>;
  /**
   * Resolves once a batch can be sent; until then items can be taken back. If it rejects, every
   * item that waits fails with that error. Batches can always be sent if absent.
   */
  ready?(): Promise<void>;
  /**
   * What an item fails with if its signal aborts after it was sent; the reason of the signal if
   * absent.
   */
  abandoned?(cause: unknown): unknown;
  /** Called after each batch with its duration and its number of items. */
  observe(durationMs: number, size: number): void;
}

/**
 * The largest number of items in a batch: so many of the largest records weigh some MiB, and MongoDB
 * accepts 48 MB at once.
 */
const maxItems = 512;

interface Entry<Item, Result> {
  readonly item: Item;
  resolve(result: Result): void;
  reject(reason: unknown): void;
}

/**
 * Joins calls into batches: while one batch is at the database the next one gathers,
 * so that a lone call waits for nobody and a crowd shares a round trip.
 *
 * The queue is bounded by the calls that the service admits, and each wait by its signal.
 */
export class Batcher<Item, Result> {
  readonly #options: BatcherOptions<Item, Result>;
  // An array, since V8 keeps what has passed through a busy Set alive for long.
  readonly #queue: Entry<Item, Result>[] = [];
  #running: Promise<void> | undefined;
  #closed = false;

  constructor(options: BatcherOptions<Item, Result>) {
    this.#options = options;
  }

  /**
   * Queues an item and resolves with its result. If the signal aborts while the item waits, it is
   * taken back and fails with the signal's reason; once it was sent, see `abandoned`.
   *
   * @throws {StoreClosedError} the batcher is closed
   */
  async add(item: Item, signal?: AbortSignal): Promise<Result> {
    if (this.#closed) throw new StoreClosedError();
    signal?.throwIfAborted();
    const { promise, resolve, reject } = Promise.withResolvers<Result>();
    const entry = { item, resolve, reject };
    const onAbort = () => {
      const reason: unknown = signal?.reason;
      const index = this.#queue.indexOf(entry);
      const wasSent = index === -1;
      if (!wasSent) this.#queue.splice(index, 1);
      reject(wasSent ? (this.#options.abandoned?.(reason) ?? reason) : reason);
    };
    signal?.addEventListener("abort", onAbort);
    this.#queue.push(entry);
    this.#running ??= this.#drain();
    try {
      return await promise;
    } finally {
      signal?.removeEventListener("abort", onAbort);
    }
  }

  /** Refuses new items and resolves when all accepted ones are settled. */
  async close(): Promise<void> {
    this.#closed = true;
    await this.#running;
  }

  async #drain(): Promise<void> {
    const { ready } = this.#options;
    while (this.#queue.length > 0) {
      try {
        if (ready) await ready();
      } catch (reason) {
        for (const entry of this.#queue.splice(0)) entry.reject(reason);
        continue;
      }
      const batch = this.#queue.splice(0, maxItems);
      if (batch.length > 0) await this.#runBatch(batch);
    }
    this.#running = undefined;
  }

  async #runBatch(batch: Entry<Item, Result>[]): Promise<void> {
    const start = performance.now();
    try {
      const outcomes = await this.#options.run(batch.map((entry) => entry.item));
      for (const [i, entry] of batch.entries()) {
        const outcome = outcomes[i] as Result | Error;
        if (outcome instanceof Error) entry.reject(outcome);
        else entry.resolve(outcome);
      }
    } catch (reason) {
      for (const entry of batch) entry.reject(reason);
    } finally {
      this.#options.observe(performance.now() - start, batch.length);
    }
  }
}
