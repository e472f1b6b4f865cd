import type { ConnectionUsage } from "./connection-usage.ts";
import { FairQueue } from "./fair-queue.ts";

/** The most bytes that may be read at once for all pages, as reserved before they are read. */
const maxMakingBytes = 16 * 1024 * 1024;

/** After how much of that no more is begun until other calls have had their turns. */
const maxBegunBytes = 2 * 1024 * 1024;

/** How much of that one size class of a caller may begin in its turn; one page may be more. */
const quantumBytes = 256 * 1024;

/** How many spare parts all connections share, to write after parts that clients do not read. */
const maxSpareParts = 1_024;

/**
 * The most exchanges that may begin in one turn of the event loop, since nothing that they take is
 * released before it ends.
 */
const maxExchanges = 1_024;

/** The most time that requests may take in one turn, in milliseconds, since others wait. */
const maxWorkMs = 25;

/** The most time that one piece of work is charged, in milliseconds, since others can take some of it. */
const maxChargeMs = 1;

/** How much more all connections may keep until memory is looked at, in bytes. */
const growthBytes = 1024 * 1024;

/** What the usage of all connections depends on, and what is to be done when they take much. */
interface TotalUsageOptions {
  isMemoryShort(): boolean;
  /** Too many exchanges begin in one turn of the event loop, or their requests take too long. */
  onFlood(): void;
  /** All connections together keep a good deal more than the least since the last call. */
  onGrowth(): void;
}

/** What all connections of a server use together. */
export class TotalUsage {
  spareParts = maxSpareParts;
  /** Bytes that may be read for pages that are being made. */
  readonly making = new FairQueue(maxMakingBytes, maxBegunBytes, quantumBytes);
  /** Changes with each turn of the event loop in which requests come. */
  turn = 0;
  /** How many exchanges have begun in this turn, and since when it takes requests. */
  #exchanges = 0;
  #beganAt = 0;
  /** The connection that was worked for last in this turn, and since when. */
  #last: ConnectionUsage | undefined;
  #lastAt = 0;
  #kept = 0;
  /** The least that was kept since memory was looked at. */
  #leastKept = 0;
  readonly #options: TotalUsageOptions;

  constructor(options: TotalUsageOptions) {
    this.#options = options;
  }

  isMemoryShort(): boolean {
    return this.#options.isMemoryShort();
  }

  /** What they keep in memory until something was sent, in bytes. */
  get kept(): number {
    return this.#kept;
  }

  /** Counts bytes that are kept until something was sent; fewer, if negative. */
  keep(bytes: number): void {
    this.#kept += bytes;
    if (this.#kept < this.#leastKept) this.#leastKept = this.#kept;
    if (this.#kept < this.#leastKept + growthBytes) return;
    this.#leastKept = this.#kept;
    this.#options.onGrowth();
  }

  /** Counts an exchange that begins on a connection. */
  begin(connection: ConnectionUsage): void {
    this.#exchanges += 1;
    this.work(connection);
  }

  /** Counts work that begins for a connection, which is charged the time until the next one. */
  work(connection: ConnectionUsage): void {
    const now = performance.now();
    if (this.#last === undefined) {
      this.#beganAt = now;
      setImmediate(() => {
        this.#exchanges = 0;
        this.#charge(performance.now());
        this.#last = undefined;
        this.turn += 1;
      });
    }
    this.#charge(now);
    this.#last = connection;
    this.#lastAt = now;
    if (this.#exchanges > maxExchanges || now - this.#beganAt > maxWorkMs) this.#options.onFlood();
  }

  #charge(now: number): void {
    this.#last?.spend(Math.min(now - this.#lastAt, maxChargeMs));
  }
}
