/** Amounts up to this fraction of the maximum may overtake others that wait for more. */
const littleFraction = 1 / 128;

/** A weighted semaphore: what asks for more than is free waits its turn; little amounts may pass. */
export class Semaphore {
  #max: number;
  #held = 0;
  /** In the order of their turns: little amounts, which need not wait for others, and the others. */
  readonly #waiting = [new Map<() => void, number>(), new Map<() => void, number>()] as const;

  /** @param max the most that may be held, but for what is added by {@link Semaphore.hold} */
  constructor(max: number) {
    this.#max = max;
  }

  /** Whether more is held than may be. */
  get isExceeded(): boolean {
    return this.#held > this.#max;
  }

  /** Acquires an amount now, or returns false if too little is free or others wait. */
  tryAcquire(amount: number): boolean {
    if (this.#waiting.some(({ size }) => size > 0) || !this.#fits(amount)) return false;
    this.#held += amount;
    return true;
  }

  /**
   * Calls back once an amount is acquired, at once if it is free. An amount above the maximum is
   * acquired when nothing else is held.
   *
   * @returns a function that stops waiting
   */
  acquire(amount: number, onAcquired: () => void): () => void {
    const waiting = this.#waiting[amount <= this.#max * littleFraction ? 0 : 1];
    const proceed = () => {
      waiting.delete(proceed);
      this.#held += amount;
      onAcquired();
    };
    waiting.set(proceed, amount);
    this.#wake();
    return () => {
      if (waiting.delete(proceed)) this.#wake();
    };
  }

  /** Adds an amount without waiting, whatever is free. */
  hold(amount: number): void {
    this.#held += amount;
  }

  /** Releases an amount, for those who wait. */
  release(amount: number): void {
    this.#held -= amount;
    if (amount > 0) this.#wake();
  }

  /** Lets more be held; less, if negative. */
  widen(amount: number): void {
    this.#max += amount;
    this.#wake();
  }

  #fits(amount: number): boolean {
    return this.#held + Math.min(amount, this.#max) <= this.#max;
  }

  #wake(): void {
    for (const waiting of this.#waiting) {
      for (const [proceed, amount] of waiting) {
        if (!this.#fits(amount)) break;
        proceed();
      }
    }
  }
}
