import { StoreOverloadedError, StoreUnavailableError } from "./store.ts";

/** How a {@link Batcher} works. */
export interface BatcherOptions<Item, Result> {
  /**
   * Takes one batch to the database. It resolves with an answer or an error for each
   * item, in order; if it rejects, every item fails with that error.
   */
  run(items: Item[]): Promise<readonly (Result | Error)[]>;
  /** The error of an item that was sent and whose caller no longer waits for it. */
  abandoned(cause: unknown): unknown;
  /** The weight of an item in bytes. */
  sizeOf(item: Item): number;
  /** Is told of each batch how long it took, in seconds, and how many items it had. */
  observe(seconds: number, size: number): void;
  /** The largest number of items in a batch. */
  maxItems: number;
  /** The largest weight of a batch in bytes; an item heavier than that goes alone. */
  maxBytes: number;
  /** The largest number of items that wait. */
  maxQueued: number;
  /** For how long the first of those that wait may have waited, in milliseconds. */
  maxWaitMs: number;
  /** After how long the items of a batch are given up, in milliseconds. */
  timeLimitMs: number;
}

interface Entry<Item, Result> {
  readonly item: Item;
  readonly queuedAt: number;
  sent: boolean;
  settle(outcome: Result | Error): void;
  fail(reason: unknown): void;
}

/**
 * Joins calls into batches: while one batch is at the database the next one gathers,
 * so that a lone call waits for nobody and a crowd shares a round trip.
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
   * Queues an item and resolves with its own answer. If the signal aborts while the
   * item waits, it is taken back and the call rejects with the signal's reason; if
   * the item was sent by then, with the option's `abandoned`.
   *
   * @throws {StoreOverloadedError} the queue is full or does not move
   * @throws {StoreUnavailableError} the batcher is closed
   */
  add(item: Item, signal?: AbortSignal): Promise<Result> {
    return new Promise((resolve, reject) => {
      if (this.#closed) throw new StoreUnavailableError("the store is closed");
      signal?.throwIfAborted();
      this.#refuseIfFull();
      const entry: Entry<Item, Result> = {
        item,
        queuedAt: performance.now(),
        sent: false,
        settle(outcome) {
          signal?.removeEventListener("abort", onAbort);
          if (outcome instanceof Error) reject(outcome);
          else resolve(outcome);
        },
        fail(reason) {
          signal?.removeEventListener("abort", onAbort);
          reject(reason);
        },
      };
      const onAbort = () => {
        const reason: unknown = signal?.reason;
        if (!entry.sent) this.#queue.splice(this.#queue.indexOf(entry), 1);
        entry.fail(entry.sent ? this.#options.abandoned(reason) : reason);
      };
      signal?.addEventListener("abort", onAbort);
      this.#queue.push(entry);
      this.#running ??= this.#drain();
    });
  }

  /** Refuses new items and resolves when all accepted ones are settled. */
  async close(): Promise<void> {
    this.#closed = true;
    await this.#running;
  }

  #refuseIfFull(): void {
    const [first] = this.#queue;
    if (first === undefined) return;
    if (
      this.#queue.length >= this.#options.maxQueued ||
      performance.now() - first.queuedAt > this.#options.maxWaitMs
    ) {
      throw new StoreOverloadedError("too many calls wait for the store");
    }
  }

  async #drain(): Promise<void> {
    while (this.#queue.length > 0) await this.#runBatch(this.#takeBatch());
    this.#running = undefined;
  }

  #takeBatch(): Entry<Item, Result>[] {
    const { maxItems, maxBytes, sizeOf } = this.#options;
    let count = 0;
    let bytes = 0;
    for (const entry of this.#queue.slice(0, maxItems)) {
      bytes += sizeOf(entry.item);
      if (count > 0 && bytes > maxBytes) break;
      entry.sent = true;
      count += 1;
    }
    return this.#queue.splice(0, count);
  }

  async #runBatch(batch: Entry<Item, Result>[]): Promise<void> {
    const start = performance.now();
    const timer = setTimeout(() => {
      const cause = new DOMException("the batch took too long", "TimeoutError");
      for (const entry of batch) entry.fail(this.#options.abandoned(cause));
    }, this.#options.timeLimitMs);
    try {
      const outcomes = await this.#options.run(batch.map((entry) => entry.item));
      for (const [i, entry] of batch.entries()) entry.settle(outcomes[i] as Result | Error);
    } catch (reason) {
      for (const entry of batch) entry.fail(reason);
    } finally {
      clearTimeout(timer);
      this.#options.observe((performance.now() - start) / 1_000, batch.length);
    }
  }
}
