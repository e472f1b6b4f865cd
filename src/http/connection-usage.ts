import type { Socket } from "node:net";
import { Semaphore } from "./semaphore.ts";
import type { TotalUsage } from "./total-usage.ts";

/** The bytes of unsent replies above which a connection is served no further. */
const maxUnsentBytes = 4 * 1024 * 1024;

/** What all connections may keep before calls are refused on those above {@link shareBytes}. */
const maxTotalBytes = 64 * 1024 * 1024;

/** {@link maxTotalBytes} when memory is short. */
const maxShortBytes = 32 * 1024 * 1024;

/** {@link maxTotalBytes} for connections on which no authorised caller has made a call. */
const maxStrangersBytes = 16 * 1024 * 1024;

/** What each connection may keep, whatever the others do. */
const shareBytes = 32 * 1024;

/** What an exchange takes besides its headers and its bodies, in bytes. */
export const exchangeBytes = 8 * 1024;

/**
 * What a connection without calls may keep besides {@link exchangeBytes} for each exchange, when
 * memory is short.
 */
const idleBytes = 12 * 1024;

/** How long a connection is spared after the last activity of its calls, in milliseconds. */
const sparedMs = 250;

/** What one connection may keep of calls that were refused. */
const maxRefusedBytes = 64 * 1024;

/** The time that a client has to read these, in milliseconds: many can be refused at once. */
const refusedTimeoutMs = 5_000;

/** The same when all connections together keep too much. */
const crowdedTimeoutMs = 100;

/**
 * The most bytes that are written at once on TLS. Until a connection closes, Node.js keeps buffers
 * as large as what it wrote in one turn: with 60 replies of 22 KB in one turn, each of 1,000
 * connections kept 1.4 MB.
 */
export const partBytes = 8 * 1024;

/** How many parts Node.js may be writing on a connection, and on one of an authorised caller. */
const maxParts = 2;
const maxAuthorisedParts = 8;

/** How a connection is used, and what it keeps in memory until its client reads. */
export class ConnectionUsage {
  readonly total: TotalUsage;
  /** Whether it has had no exchange yet. */
  isNew = true;
  /** How many exchanges are open on it. */
  open = 0;
  /** When the last of them closed, or else when it came, by performance.now(). */
  idleSince = performance.now();
  /** How many calls run on it, watches apart. */
  calls = 0;
  /** How many watches run on it, which end with the connection. */
  watches = 0;
  /** How many of its calls are being admitted. */
  admitting = 0;
  /** Whether any admitted call has run on it. */
  hasRunCall = false;
  /** Whether a call on it was authorised, which any call is where nobody needs credentials. */
  isAuthorised = false;
  /** Whose call was last authorised on it; empty for nobody in particular. */
  caller = "";
  /** When a call was last authorised or has ended, or else when it came, by performance.now(). */
  usedAt = this.idleSince;
  /** When a part of a request's body last came, or else when the connection did. */
  receivedAt = this.idleSince;
  /** Bytes of replies, and of those to come that will be large. */
  readonly unsent = new Semaphore(maxUnsentBytes);
  /** Bytes on TLS that Node.js has yet to write. */
  readonly unwritten = new Semaphore(maxParts * partBytes);
  /** How many parts it has written. */
  partsWritten = 0;
  /** Bytes that it keeps in memory until something was sent. */
  #kept = 0;
  #spareParts = 0;
  #isClosed = false;
  #readBytes = 0;
  #readAt = this.idleSince;
  #spentMs = 0;
  #spentIn = 0;
  #mostMs = 0;
  #mostAt = 0;
  #refused = 0;
  #refusedTimer: NodeJS.Timeout | undefined;

  constructor(total: TotalUsage) {
    this.total = total;
  }

  /** Counts an exchange that is open from now on. */
  begin(): void {
    this.isNew = false;
    this.open += 1;
    this.total.begin(this);
  }

  /** Counts one that has closed. */
  end(): void {
    this.open -= 1;
    this.idleSince = performance.now();
    if (this.open === 0) this.#returnSpareParts();
  }

  /** Counts time that its exchanges take in this turn of the event loop, in milliseconds. */
  spend(ms: number): void {
    if (this.#spentIn !== this.total.turn) this.#spentMs = 0;
    this.#spentIn = this.total.turn;
    this.#spentMs += ms;
  }

  /** When it was found to have been read last, given the number of bytes read so far. */
  updateReadAt(bytes: number, now: number): number {
    if (bytes !== this.#readBytes) this.#readAt = now;
    this.#readBytes = bytes;
    return this.#readAt;
  }

  /** The most time it took in one turn, of those after which this was called; halves every 10 s. */
  updateMostMs(now: number): number {
    const spentMs = this.#spentIn === this.total.turn - 1 ? this.#spentMs : 0;
    this.#spentMs = 0;
    this.#mostMs = Math.max(spentMs, this.#mostMs * 2 ** ((this.#mostAt - now) / 10_000));
    this.#mostAt = now;
    return this.#mostMs;
  }

  /** Gives it the shares of connections on which an authorised caller has made a call. */
  authorise(caller: string): void {
    this.caller = caller;
    this.usedAt = performance.now();
    if (this.isAuthorised) return;
    this.isAuthorised = true;
    this.unwritten.widen((maxAuthorisedParts - maxParts) * partBytes);
  }

  /** Lets one more part be written if there is a spare one, since those before it are not read. */
  addSparePart(): void {
    if (this.#isClosed || this.total.spareParts === 0) return;
    this.total.spareParts -= 1;
    this.#spareParts += 1;
    this.unwritten.widen(partBytes);
  }

  /** Ends with its connection. */
  close(): void {
    this.#isClosed = true;
    this.#returnSpareParts();
  }

  #returnSpareParts(): void {
    if (this.#spareParts === 0) return;
    this.total.spareParts += this.#spareParts;
    this.unwritten.widen(-this.#spareParts * partBytes);
    this.#spareParts = 0;
  }

  /** Whether no call has run on it, and none is being admitted. */
  get isUntried(): boolean {
    return !this.hasRunCall && this.admitting === 0;
  }

  /** Whether it keeps much though no call runs on it, nor did lately. */
  get isExpendable(): boolean {
    if (this.admitting > 0 || this.#kept - this.open * exchangeBytes <= idleBytes) return false;
    if (!this.hasRunCall) return true;
    const sparedFrom = performance.now() - sparedMs;
    return this.calls === 0 && Math.max(this.usedAt, this.receivedAt) < sparedFrom;
  }

  /**
   * Whether it may be closed to make room. Watches and calls that are being admitted, which anybody
   * may have, protect it only once a call has run on it.
   */
  get isReplaceable(): boolean {
    return !this.hasRunCall || this.calls + this.watches + this.admitting === 0;
  }

  /** Whether it keeps more than its share while all together keep too much. */
  get isCrowded(): boolean {
    return this.#kept > shareBytes && this.#isTotalExceeded();
  }

  /** Whether a reply of this size may wait to be sent. */
  canTake(bytes: number): boolean {
    return bytes <= shareBytes || !this.#isTotalExceeded(bytes);
  }

  /** Whether all connections together keep too much, with so many bytes more. */
  #isTotalExceeded(bytes = 0): boolean {
    const kept = this.total.kept + bytes;
    if (!this.isAuthorised) return kept > maxStrangersBytes;
    // Every call comes here, and looking at the memory takes nearly as long as a call does.
    return kept > maxShortBytes && (kept > maxTotalBytes || this.total.isMemoryShort());
  }

  /** Counts bytes that are kept until something was sent; fewer, if negative. */
  keep(bytes: number): void {
    this.#kept += bytes;
    this.total.keep(bytes);
  }

  /** Counts bytes of replies to refused calls, which close the connection if too many wait. */
  addRefused(bytes: number, socket: Socket): void {
    this.#refused += bytes;
    if (this.#refused <= maxRefusedBytes) {
      clearTimeout(this.#refusedTimer);
      this.#refusedTimer = undefined;
    } else {
      const ms = this.#isTotalExceeded() ? crowdedTimeoutMs : refusedTimeoutMs;
      this.#refusedTimer ??= setTimeout(() => socket.destroy(), ms).unref();
    }
  }
}
