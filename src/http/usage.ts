import type { Socket } from "node:net";
import type { TLSSocket } from "node:tls";
import { overloaded } from "../service/errors.ts";

/** Replies that one connection may leave unsent before it is served no further, in bytes. */
const maxUnsentBytes = 4 * 1024 * 1024;

/** What all connections may keep before calls on those that have their share are refused. */
const maxTotalBytes = 64 * 1024 * 1024;

/** The same on connections on which no authorised caller has made a call. */
const maxStrangersBytes = 16 * 1024 * 1024;

/** What each connection may keep, whatever the others do. */
const shareBytes = 32 * 1024;

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
const partBytes = 8 * 1024;

/** How many parts Node.js may have on one connection, and how many of authorised callers. */
const maxParts = 2;
const maxAuthorisedParts = 8;

/** What an exchange takes besides its headers and its reply, in bytes. */
const exchangeBytes = 8 * 1024;

/** What a header takes besides its name and its value, in bytes. */
const fieldBytes = 100;

/** What all connections keep in memory until something was sent, in bytes. */
export interface Total {
  kept: number;
}

/** How a connection is used, and what it keeps in memory until its client reads. */
export class ConnectionUsage {
  /** How many exchanges are open on it. */
  open = 0;
  /** When the last of them closed, or else when it came, by performance.now(). */
  idleSince = performance.now();
  /** How many calls that were admitted, and watches, are open on it. */
  inUse = 0;
  /** How many of them are watches, which end with the connection. */
  watches = 0;
  /** Whether any call was admitted on it. */
  wasAdmitted = false;
  /** Whether an authorised caller has made a call on it. */
  isAuthorised = false;
  /** When the last of them ended, or else when it came, by performance.now(). */
  usedAt = this.idleSince;
  readonly #total: Total;
  /** What waits until it has sent more, and how much room each needs, in bytes. */
  readonly #waiting = new Map<() => void, number>();
  /** Bytes that it keeps in memory until something was sent. */
  #kept = 0;
  /** Bytes of replies, and of those to come that will be large. */
  #unsent = 0;
  /** Bytes on TLS that Node.js has yet to write, and what waits to have more written. */
  #unwritten = 0;
  readonly #turns = new Set<() => boolean>();
  #refused = 0;
  #refusedTimer: NodeJS.Timeout | undefined;

  constructor(total: Total) {
    this.#total = total;
  }

  /** Whether one more call may be served on it. */
  get hasRoom(): boolean {
    return this.#unsent <= maxUnsentBytes;
  }

  /** Whether calls on it are refused, since it keeps too much beside the others. */
  get isCrowded(): boolean {
    return this.#total.kept > this.#maxTotalBytes && this.#kept > shareBytes;
  }

  /** Whether a reply of so many bytes may wait to be sent, whatever waits beside it. */
  canTake(bytes: number): boolean {
    return bytes <= shareBytes || this.#total.kept + bytes <= this.#maxTotalBytes;
  }

  get #maxTotalBytes(): number {
    return this.isAuthorised ? maxTotalBytes : maxStrangersBytes;
  }

  /** Counts bytes that are kept until something was sent; fewer, if negative. */
  keep(bytes: number): void {
    this.#kept += bytes;
    this.#total.kept += bytes;
  }

  /**
   * Calls back when a reply of so many bytes may wait to be sent, and counts it; at once if it may
   * now.
   *
   * @returns gives up to wait
   */
  reserve(bytes: number, onRoom: () => void): () => void {
    const go = () => {
      this.#waiting.delete(go);
      this.#unsent += bytes;
      onRoom();
    };
    this.#waiting.set(go, Math.min(bytes, maxUnsentBytes));
    this.#goOn();
    return () => {
      if (this.#waiting.delete(go)) this.#goOn();
    };
  }

  /** Counts a reply no more, or part of it; one more, if negative. */
  release(bytes: number): void {
    this.#unsent -= bytes;
    // A reply that takes room makes none: what waits would go on within what goes on.
    if (bytes > 0) this.#goOn();
  }

  #goOn(): void {
    for (const [go, needed] of this.#waiting) {
      if (this.#unsent + needed > maxUnsentBytes) return;
      go();
    }
  }

  /** Counts bytes that are about to be written; false if too many are, or others wait to be. */
  tryWrite(bytes: number): boolean {
    return this.#turns.size === 0 && this.#countUnwritten(bytes);
  }

  #countUnwritten(bytes: number): boolean {
    const max = (this.isAuthorised ? maxAuthorisedParts : maxParts) * partBytes;
    if (this.#unwritten > 0 && this.#unwritten + bytes > max) return false;
    this.#unwritten += bytes;
    return true;
  }

  /**
   * Calls back once these bytes were counted.
   *
   * @returns gives up to wait
   */
  waitToWrite(bytes: number, onTurn: () => void): () => void {
    const go = () => {
      if (!this.#countUnwritten(bytes)) return false;
      this.#turns.delete(go);
      onTurn();
      return true;
    };
    this.#turns.add(go);
    return () => void this.#turns.delete(go);
  }

  /** Counts bytes no more that were written, or never will be, and lets go on what waits. */
  wrote(bytes: number): void {
    this.#unwritten -= bytes;
    for (const go of this.#turns) {
      if (!go()) return;
    }
  }

  /** Counts bytes of replies to refused calls, which close the connection if too many wait. */
  addRefused(bytes: number, socket: Socket): void {
    this.#refused += bytes;
    if (this.#refused <= maxRefusedBytes) {
      clearTimeout(this.#refusedTimer);
      this.#refusedTimer = undefined;
    } else {
      const ms = this.#total.kept > maxTotalBytes ? crowdedTimeoutMs : refusedTimeoutMs;
      this.#refusedTimer ??= setTimeout(() => socket.destroy(), ms).unref();
    }
  }
}

/** What one exchange adds to the usage of its connection, until it closes. */
export class ExchangeUsage {
  readonly #connection: ConnectionUsage;
  readonly #socket: Socket;
  /** Whether its connection is on TLS. */
  readonly isEncrypted: boolean;
  /** How many times its size a reply takes until it is sent: on TLS, as measured, three. */
  readonly #copies: number;
  #isClosed = false;
  #usedBy: "call" | "watch" | undefined;
  #isRefused = false;
  /** Bytes that it keeps in memory until it closes, and those of its reply among them. */
  #kept = exchangeBytes;
  #reply = 0;
  /** Bytes that its reply may take, until it has one. */
  #reserved = 0;
  /** Bytes on TLS that Node.js has yet to write. */
  #unwritten = 0;
  /** Gives up to wait for room, and for a turn. */
  #giveUp: (() => void) | undefined;
  #giveUpTurn: (() => void) | undefined;

  constructor(connection: ConnectionUsage, socket: Socket, rawHeaders: string[]) {
    this.#connection = connection;
    this.#socket = socket;
    this.isEncrypted = (socket as Partial<TLSSocket>).encrypted === true;
    this.#copies = this.isEncrypted ? 3 : 1;
    for (const text of rawHeaders) this.#kept += text.length + fieldBytes / 2;
    connection.open += 1;
    connection.keep(this.#kept);
  }

  /** Calls back once the connection has room for more replies; never if it closes before. */
  waitForRoom(onRoom: () => void): void {
    const { hasRoom, isCrowded } = this.#connection;
    // What would be refused anyway need not wait for it.
    if (hasRoom || isCrowded) onRoom();
    else this.reserve(0, onRoom);
  }

  /**
   * Calls back when a reply of so many bytes may wait on the connection; never if it closes
   * before.
   */
  reserve(bytes: number, onRoom: () => void): void {
    if (this.#isClosed) return;
    const taken = this.#copies * bytes;
    this.#giveUp = this.#connection.reserve(taken, () => {
      this.#reserved += taken;
      onRoom();
    });
  }

  /** Gives the connection the share of memory of authorised callers. */
  authorise(): void {
    this.#connection.isAuthorised = true;
  }

  /**
   * Goes on unless the connection keeps more than its share while all together keep too much.
   *
   * @throws {ConnectError} OVERLOADED
   */
  expectRoom(): void {
    if (this.#connection.isCrowded) throw overloaded();
  }

  /**
   * Goes on only if a reply of so many bytes may wait to be sent.
   *
   * @throws {ConnectError} OVERLOADED
   */
  expectRoomFor(bytes: number): void {
    if (this.#connection.canTake(this.#copies * bytes)) return;
    this.refuse();
    throw overloaded();
  }

  /** Counts its reply as one to a refused call, of which a connection may not leave many unread. */
  refuse(): void {
    if (this.#isClosed || this.#isRefused) return;
    this.#isRefused = true;
    this.#connection.addRefused(this.#kept, this.#socket);
  }

  /**
   * Marks the connection as in use until the exchange closes, so that it is not closed for being
   * idle.
   *
   * @param by a watch ends with its connection at the latest, a call by itself
   */
  use(by: "call" | "watch"): void {
    if (this.#isClosed || this.#usedBy) return;
    this.#usedBy = by;
    this.#connection.inUse += 1;
    if (by === "watch") this.#connection.watches += 1;
    else this.#connection.wasAdmitted = true;
  }

  /** Keeps no more of what was reserved than a reply of so many bytes takes. */
  settle(bytes: number): void {
    if (this.#isClosed) return;
    const taken = Math.min(this.#copies * bytes, this.#reserved);
    this.#connection.release(this.#reserved - taken);
    this.#reserved = taken;
  }

  /** Counts a reply of so many bytes, instead of what was reserved for it. */
  keepReply(bytes: number): void {
    if (this.#isClosed) return;
    const taken = this.#copies * bytes;
    this.#reply += taken;
    this.#keep(taken);
    this.#connection.release(this.#reserved - taken);
    this.#reserved = 0;
  }

  /** Counts so many bytes of its reply no more, once they were sent. */
  releaseReply(bytes: number): void {
    if (this.#isClosed) return;
    const taken = this.#copies * bytes;
    this.#reply -= taken;
    this.#keep(-taken);
    this.#connection.release(taken);
    this.#wrote(Math.min(bytes, this.#unwritten));
  }

  /** A body as it is written, which is in small parts on TLS. */
  *partsOf(body: string | Uint8Array): Iterable<string | Uint8Array> {
    // A unit of UTF-16 takes at most three bytes.
    if (!this.isEncrypted || body.length <= partBytes / 3) {
      yield body;
      return;
    }
    const bytes = typeof body === "string" ? Buffer.from(body) : body;
    for (let start = 0; start < bytes.length; start += partBytes) {
      yield bytes.subarray(start, start + partBytes);
    }
  }

  /** Whether so many bytes may be written at once now; they then count until they were. */
  tryWrite(bytes: number): boolean {
    if (!this.isEncrypted || this.#isClosed) return true;
    if (bytes > partBytes || !this.#connection.tryWrite(bytes)) return false;
    this.#unwritten += bytes;
    return true;
  }

  /** Resolves once so many bytes may be written, which then count; also when it closes. */
  waitToWrite(bytes: number): Promise<void> {
    return new Promise((resolve) => {
      const giveUp = this.#connection.waitToWrite(bytes, () => {
        this.#unwritten += bytes;
        resolve();
      });
      this.#giveUpTurn = () => {
        giveUp();
        resolve();
      };
    });
  }

  #wrote(bytes: number): void {
    this.#unwritten -= bytes;
    this.#connection.wrote(bytes);
  }

  /** Counts all of it no more; called once. */
  close(): void {
    const connection = this.#connection;
    this.#isClosed = true;
    this.#giveUp?.();
    this.#giveUpTurn?.();
    this.#wrote(this.#unwritten);
    const now = performance.now();
    connection.open -= 1;
    connection.idleSince = now;
    if (this.#usedBy) {
      connection.inUse -= 1;
      connection.usedAt = now;
      if (this.#usedBy === "watch") connection.watches -= 1;
    }
    this.#keep(-this.#kept);
    connection.release(this.#reserved + this.#reply);
  }

  /** Counts bytes that are kept until it closes; fewer, if negative. */
  #keep(bytes: number): void {
    this.#kept += bytes;
    this.#connection.keep(bytes);
    if (this.#isRefused) this.#connection.addRefused(bytes, this.#socket);
  }
}
