import { setImmediate as nextTurn } from "node:timers/promises";

/**
 * After work, other calls get a turn of the event loop for each `msPerTurn` milliseconds that it
 * took at once, and at most `maxTurns`. libuv accepts one connection a turn: without these turns, a
 * crowd that lists 1,000 records each kept a new connection waiting for 9 s.
 */
const maxTurns = 4;
const msPerTurn = 2;

/** What waits of one caller in one size class, each with its amount. */
type Lane = Map<() => void, number>;

/**
 * Bounds how much runs at once, and how much starts before other work gets its turns. Callers take
 * turns of about the same amount, and so do the size classes of one caller: one that keeps asking
 * for much delays neither others nor its own small requests.
 */
export class FairQueue {
  #free: number;
  readonly #maxBegun: number;
  /** What has begun since others had their turns. */
  #begun = 0;
  /** In the order of their turns. */
  readonly #lanes = new Map<string, Lane>();
  /** What has begun in the turn of the first lane. */
  #inTurn = 0;

  /**
   * @param max the most that is done at once
   * @param maxBegun after how much a turn is over, and no more begins for some turns of the event loop
   */
  constructor(max: number, maxBegun: number) {
    this.#free = max;
    this.#maxBegun = maxBegun;
  }

  /**
   * Calls back once it is the turn of an amount, at once if nothing prevents it.
   *
   * @param amount must not be more than may be done at once
   * @returns a function that stops waiting
   */
  acquire(caller: string, amount: number, onAcquired: () => void): () => void {
    const key = `${Math.ceil(Math.log2(amount))} ${caller}`;
    const lane = this.#lanes.get(key) ?? new Map();
    this.#lanes.set(key, lane.set(onAcquired, amount));
    this.#wake();
    return () => {
      lane.delete(onAcquired);
      this.#wake();
    };
  }

  /** Releases an amount, for those who wait. */
  release(amount: number): void {
    this.#free += amount;
    this.#wake();
  }

  #wake(): void {
    for (const [key, lane] of this.#lanes) {
      for (const [onAcquired, amount] of lane) {
        if (amount > this.#free || this.#begun >= this.#maxBegun) return;
        lane.delete(onAcquired);
        this.#begin(amount);
        onAcquired();
        this.#inTurn += amount;
        if (this.#inTurn >= this.#maxBegun) break;
      }
      // Behind all others, which this loop comes to first.
      this.#inTurn = 0;
      this.#lanes.delete(key);
      if (lane.size > 0) this.#lanes.set(key, lane);
    }
  }

  #begin(amount: number): void {
    this.#free -= amount;
    if (this.#begun === 0) void this.#letOthers();
    this.#begun += amount;
  }

  async #letOthers(): Promise<void> {
    const start = performance.now();
    await nextTurn();
    let turns = Math.min(Math.floor((performance.now() - start) / msPerTurn), maxTurns);
    for (; turns > 0; turns -= 1) await nextTurn();
    this.#begun = 0;
    this.#wake();
  }
}
