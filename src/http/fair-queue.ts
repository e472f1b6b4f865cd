import { setImmediate as nextTurn } from "node:timers/promises";

/**
 * After work, other calls get one turn of the event loop, and one more for each `msPerTurn`
 * milliseconds that it took at once, up to `maxTurns` more. libuv accepts one connection a turn:
 * without these turns, a crowd that lists 1,000 records each kept a new connection waiting for 9 s.
 */
const maxTurns = 4;
const msPerTurn = 2;

/** What waits of one caller in one size class. */
interface Lane {
  /** Its callbacks in their order, each with its amount. */
  readonly waiting: Map<() => void, number>;
  /** How much more may begin in its turn; what has begun beyond that, if negative, counts later on. */
  credit: number;
}

/**
 * Bounds how much runs at once, and how much starts before other work gets its turns. Callers take
 * turns, and so do the size classes of one caller, so that all of them get the same amount (deficit
 * round robin): one that keeps asking for much delays neither others nor its own small requests.
 */
export class FairQueue {
  #free: number;
  readonly #maxBegun: number;
  readonly #quantum: number;
  /** What has begun since others had their turns. */
  #begun = 0;
  /** In the order of their turns. */
  readonly #lanes = new Map<string, Lane>();

  /**
   * @param max the most that is done at once
   * @param maxBegun once so much has begun, no more begins for some turns of the event loop
   * @param quantum how much of a caller's size class may begin in its turn
   */
  constructor(max: number, maxBegun: number, quantum: number) {
    this.#free = max;
    this.#maxBegun = maxBegun;
    this.#quantum = quantum;
  }

  /**
   * Calls back once it is the turn of an amount, at once if nothing prevents it.
   *
   * @param amount must not be more than may be done at once
   * @param onAcquired must neither release nor acquire anything here before it returns
   * @returns a function that stops waiting
   */
  acquire(caller: string, amount: number, onAcquired: () => void): () => void {
    const key = `${Math.ceil(Math.log2(amount))} ${caller}`;
    const lane = this.#lanes.get(key) ?? { waiting: new Map(), credit: this.#quantum };
    lane.waiting.set(onAcquired, amount);
    this.#lanes.set(key, lane);
    this.#wake();
    return () => {
      lane.waiting.delete(onAcquired);
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
      for (const [onAcquired, amount] of lane.waiting) {
        if (lane.credit <= 0) break;
        if (amount > this.#free || this.#begun >= this.#maxBegun) return;
        lane.waiting.delete(onAcquired);
        lane.credit -= amount;
        this.#begin(amount);
        onAcquired();
      }
      // Behind all others, which this loop comes to first.
      this.#lanes.delete(key);
      lane.credit += this.#quantum;
      if (lane.waiting.size === 0 && lane.credit > 0) continue;
      this.#lanes.set(key, lane);
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
