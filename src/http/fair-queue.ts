/**
 * After work, other calls get a turn of the event loop for each `msPerTurn` milliseconds that it
 * took, and at most `maxTurns`. libuv accepts one connection a turn: without these turns, a crowd
 * that lists 1,000 records each kept a new connection waiting for 9 s.
 */
const maxTurns = 4;
const msPerTurn = 2;

/** What waits of one caller in one size class, each with its amount. */
type Lane = Map<() => void, number>;

/**
 * Bounds how much runs at once, and how much starts before other work gets its turns. Callers take
 * turns, and so do the size classes of one caller: one that keeps asking for much delays neither
 * others nor its own small requests.
 */
export class FairQueue {
  #free: number;
  readonly #maxBegun: number;
  /** What has begun since others had their turns. */
  #begun = 0;
  readonly #lanes = new Map<string, Lane>();

  /**
   * @param max the most that is done at once
   * @param maxBegun how much may start before it pauses for some turns of the event loop
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
      const [next] = lane;
      if (next === undefined) {
        this.#lanes.delete(key);
        continue;
      }
      const [onAcquired, amount] = next;
      if (amount > this.#free || this.#begun >= this.#maxBegun) return;
      lane.delete(onAcquired);
      // Behind all others, which this loop comes to first.
      this.#lanes.delete(key);
      if (lane.size > 0) this.#lanes.set(key, lane);
      this.#begin(amount);
      onAcquired();
    }
  }

  #begin(amount: number): void {
    this.#free -= amount;
    if (this.#begun === 0) {
      const start = performance.now();
      setImmediate(() => {
        const turns = Math.floor((performance.now() - start) / msPerTurn);
        afterTurns(Math.min(turns, maxTurns), () => {
          this.#begun = 0;
          this.#wake();
        });
      });
    }
    this.#begun += amount;
  }
}

function afterTurns(turns: number, callback: () => void): void {
  if (turns === 0) callback();
  else setImmediate(() => afterTurns(turns - 1, callback));
}
