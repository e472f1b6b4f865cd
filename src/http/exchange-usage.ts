import type { Socket } from "node:net";
import type { TLSSocket } from "node:tls";
import { overloaded } from "../service/errors.ts";
import { type ConnectionUsage, exchangeBytes, partBytes } from "./connection-usage.ts";
import type { FairQueue } from "./fair-queue.ts";

/** How long a write waits before the parts ahead of it count as unread, in milliseconds. */
const stuckMs = 100;

/** What a header takes besides its name and its value, in bytes. */
const fieldBytes = 100;

/**
 * What one exchange adds to the usage of its connection, until it closes. Room for a large reply is
 * reserved, the reply is made, and then kept until it was sent; on TLS, its parts are unwritten until
 * Node.js has written them.
 */
export class ExchangeUsage {
  readonly #connection: ConnectionUsage;
  readonly #socket: Socket;
  /** Whether its connection is on TLS. */
  readonly isEncrypted: boolean;
  /** How many copies of a body are in memory: on TLS, as measured, up to three. */
  readonly #copies: number;
  #isClosed = false;
  /** Whose call it carries; empty for nobody in particular. */
  #caller = "";
  #usedBy: "call" | "watch" | undefined;
  #isRefused = false;
  /** Bytes that it keeps in memory until it closes, and those of its reply among them. */
  #kept = exchangeBytes;
  #reply = 0;
  /** Bytes that its reply may take, until it has one. */
  #reserved = 0;
  /** Bytes that may be read at once while its reply is being made. */
  #making = 0;
  /** Bytes on TLS that Node.js has yet to write. */
  #unwritten = 0;
  /** Stops waiting for room, or for a turn in a queue: it waits for one thing at a time. */
  #stopWaiting: (() => void) | undefined;
  /** Stops waiting to write. */
  #stopWaitingToWrite: (() => void) | undefined;

  /** @param head what came before the body */
  constructor(connection: ConnectionUsage, socket: Socket, head: string[]) {
    this.#connection = connection;
    this.#socket = socket;
    this.isEncrypted = (socket as Partial<TLSSocket>).encrypted === true;
    this.#copies = this.isEncrypted ? 3 : 1;
    for (const text of head) this.#kept += text.length + fieldBytes / 2;
    connection.begin();
    connection.keep(this.#kept);
  }

  /** Calls back once the connection has room for more replies; never if it closes first. */
  waitForRoom(onRoom: () => void): void {
    // What would be refused anyway need not wait for it.
    if (!this.#connection.unsent.isExceeded || this.isCrowded) onRoom();
    else this.#wait(0, onRoom);
  }

  /** Resolves when a reply of this size may wait on the connection; never if it closes first. */
  reserve(bytes: number): Promise<void> {
    return new Promise((resolve) => this.#wait(this.#copies * bytes, resolve));
  }

  #wait(bytes: number, onRoom: () => void): void {
    if (this.#isClosed) return;
    this.#stopWaiting = this.#connection.unsent.acquire(bytes, () => {
      this.#reserved += bytes;
      onRoom();
    });
  }

  /** Resolves at the caller's turn to read so many bytes for a reply; never if it closes first. */
  beginMaking(bytes: number): Promise<void> {
    return this.waitForTurn(this.#connection.total.making, bytes, () => {
      this.#making += bytes;
    });
  }

  /**
   * Resolves at the caller's turn in a queue, whose amount has to be released afterwards; never if
   * it closes first.
   */
  waitForTurn(queue: FairQueue, amount: number, onTurn?: () => void): Promise<void> {
    return new Promise((resolve) => {
      if (this.#isClosed) return;
      this.#stopWaiting = queue.acquire(this.#caller, amount, () => {
        onTurn?.();
        resolve();
      });
    });
  }

  /** Lets others read for their replies, once all for this one was read. */
  endMaking(): void {
    const bytes = this.#making;
    this.#making = 0;
    if (bytes > 0) this.#connection.total.making.release(bytes);
  }

  /** Counts the work for a part of the request. */
  beginPart(): void {
    this.#connection.total.work(this.#connection);
  }

  /** Counts bytes of the request, which are kept until it closes. */
  keepRequest(bytes: number): void {
    if (this.#isClosed) return;
    this.#connection.receivedAt = performance.now();
    this.keep(this.#copies * bytes);
  }

  /** Whether the connection keeps more than its share while all together keep too much. */
  get isCrowded(): boolean {
    return this.#connection.isCrowded;
  }

  /** Gives it the turns of its caller, and its connection the share of memory of authorised ones. */
  authorise(caller: string): void {
    this.#caller = caller;
    this.#connection.authorise(caller);
  }

  /** Spares the connection while a call on it is being admitted, until what it returns is called. */
  beginAdmission(): () => void {
    this.#connection.admitting += 1;
    return () => {
      this.#connection.admitting -= 1;
    };
  }

  /** @throws {ConnectError} OVERLOADED, if {@link ExchangeUsage.isCrowded} */
  expectRoom(): void {
    if (this.isCrowded) throw overloaded();
  }

  /**
   * Throws if no reply of this size may wait to be sent.
   *
   * @throws {ConnectError} OVERLOADED
   */
  expectRoomFor(bytes: number): void {
    if (this.#connection.canTake(this.#copies * bytes)) return;
    this.refuse();
    throw overloaded();
  }

  /** Counts its reply as that of a refused call, of which a connection may leave few unread. */
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
    if (by === "watch") {
      this.#connection.watches += 1;
      return;
    }
    this.#connection.calls += 1;
    this.#connection.hasRunCall = true;
  }

  /** Shrinks the reservation to what a reply of this size takes. */
  settle(bytes: number): void {
    if (this.#isClosed) return;
    const taken = Math.min(this.#copies * bytes, this.#reserved);
    this.#connection.unsent.release(this.#reserved - taken);
    this.#reserved = taken;
    this.endMaking();
  }

  /** Counts a reply of this size, instead of what was reserved for it. */
  keepReply(bytes: number): void {
    if (this.#isClosed) return;
    // A call that fails has its reply before its turn.
    this.#stopWaiting?.();
    const taken = this.#copies * bytes;
    this.#reply += taken;
    this.keep(taken);
    this.#connection.unsent.hold(taken);
    this.#connection.unsent.release(this.#reserved);
    this.#reserved = 0;
    this.endMaking();
  }

  /** Releases bytes of its reply once they were sent. */
  releaseReply(bytes: number): void {
    if (this.#isClosed) return;
    const taken = this.#copies * bytes;
    this.#reply -= taken;
    this.keep(-taken);
    this.#connection.unsent.release(taken);
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

  /** Acquires the right to write these bytes now; returns false if they have to wait. */
  tryWrite(bytes: number): boolean {
    if (!this.isEncrypted || this.#isClosed) return true;
    if (bytes > partBytes || !this.#connection.unwritten.tryAcquire(bytes)) return false;
    this.#unwritten += bytes;
    return true;
  }

  /** Resolves once these bytes may be written, or when the exchange closes. */
  waitToWrite(bytes: number): Promise<void> {
    return new Promise((resolve) => {
      let { partsWritten } = this.#connection;
      const widening = setInterval(() => {
        if (this.#connection.partsWritten === partsWritten) this.#connection.addSparePart();
        partsWritten = this.#connection.partsWritten;
      }, stuckMs);
      const done = () => {
        clearInterval(widening);
        resolve();
      };
      const stopWaiting = this.#connection.unwritten.acquire(bytes, () => {
        this.#unwritten += bytes;
        done();
      });
      this.#stopWaitingToWrite = () => {
        stopWaiting();
        done();
      };
    });
  }

  #wrote(bytes: number): void {
    this.#unwritten -= bytes;
    if (bytes > 0) this.#connection.partsWritten += 1;
    this.#connection.unwritten.release(bytes);
  }

  /** Releases all that it holds; called once. */
  close(): void {
    const connection = this.#connection;
    this.#isClosed = true;
    this.#stopWaiting?.();
    this.#stopWaitingToWrite?.();
    this.#wrote(this.#unwritten);
    this.endMaking();
    connection.end();
    if (this.#usedBy === "call") connection.calls -= 1;
    if (this.#usedBy === "watch") connection.watches -= 1;
    // Only after a call: anybody could end watches to keep a connection. idleSince is now, by end().
    if (this.#usedBy && connection.hasRunCall) connection.usedAt = connection.idleSince;
    this.keep(-this.#kept);
    connection.unsent.release(this.#reserved + this.#reply);
  }

  /** Counts bytes that are kept until it closes; fewer, if negative. */
  keep(bytes: number): void {
    this.#kept += bytes;
    this.#connection.keep(bytes);
    if (this.#isRefused) this.#connection.addRefused(bytes, this.#socket);
  }
}
