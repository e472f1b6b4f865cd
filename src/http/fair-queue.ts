/** Those of one caller who wait for the same amount. */
interface Lane {
  readonly amount: number;
  readonly waiting: Set<() => void>;
}

/**
 * Bounds how much is done at once, and how much begins in one turn of the event loop. Callers take
 * turns, and so do the amounts that one caller asks for: one who asks for a lot, over and over, holds
 * up neither others nor what is small.
 */
export class FairQueue {
  #free: number;
  /** What was released and is not free yet. */
  #released = 0;
  readonly #maxPerTurn: number;
  readonly #lanes = new Map<string, Lane>();

  /**
   * @param max the most that is done at once
   * @param maxPerTurn the most that becomes free in one turn of the event loop
   */
  constructor(max: number, maxPerTurn: number) {
    this.#free = max;
    this.#maxPerTurn = maxPerTurn;
  }

  /**
   * Calls back once it is the turn of an amount, at once if it is free and nobody waits.
   *
   * @param amount what may be done at once, at most
   * @returns a function that stops waiting
   */
  acquire(caller: string, amount: number, onAcquired: () => void): () => void {
    const key = `${amount} ${caller}`;
    const lane = this.#lanes.get(key) ?? { amount, waiting: new Set() };
    this.#lanes.set(key, lane);
    lane.waiting.add(onAcquired);
    this.#wake();
    return () => {
      lane.waiting.delete(onAcquired);
      if (lane.waiting.size === 0 && this.#lanes.get(key) === lane) this.#lanes.delete(key);
      this.#wake();
    };
  }

  /** Makes an amount free, in one of the next turns of the event loop. */
  release(amount: number): void {
    if (this.#released === 0) setImmediate(() => this.#freeSome());
    this.#released += amount;
  }

  #freeSome(): void {
    const amount = Math.min(this.#released, this.#maxPerTurn);
    this.#released -= amount;
    this.#free += amount;
    if (this.#released > 0) setImmediate(() => this.#freeSome());
    this.#wake();
  }

  #wake(): void {
    for (const [key, lane] of this.#lanes) {
      if (lane.amount > this.#free) return;
      const [next] = lane.waiting;
      this.#lanes.delete(key);
      if (next === undefined) continue;
      lane.waiting.delete(next);
      // Behind all others, which this loop comes to first.
      if (lane.waiting.size > 0) this.#lanes.set(key, lane);
      this.#free -= lane.amount;
      next();
    }
  }
}
