import type { Readable } from "node:stream";
import { malformedRequest, messageTooLarge, overloaded } from "../service/errors.ts";
import type { ExchangeUsage } from "./exchange-usage.ts";

/** The most bytes to keep of a body before it is read. */
const maxBufferedBytes = 68 * 1024;

/** The most parts in which a body is kept: a chunk of one byte takes some hundred. */
const maxParts = 64;

/**
 * A stream that is not read is destroyed once more than {@link maxWaitingChunks} chunks wait that
 * are smaller than {@link smallChunkBytes} on average.
 */
const maxWaitingChunks = 512;
const smallChunkBytes = 64;

/**
 * A body that is not read as a stream fails once more than {@link maxChunks} chunks came that are
 * smaller than {@link smallAverageBytes} on average; at twice as many its request is destroyed. Each
 * takes half a microsecond: in chunks of one byte, 100 connections can send more than is ever parsed.
 */
const maxChunks = 512;
const smallAverageBytes = 256;

const tooSmall = "the request comes in too small parts";

/**
 * The most bytes of a stream that are handed on at once: of each message in them, which may be
 * empty, Connect makes objects of some 400 bytes before the first one is served.
 */
const pieceBytes = 1_024;

/**
 * The most bytes of an array that V8 keeps in its heap. It moves one out for the first view on it;
 * to copy it into the pool of Buffer takes half as long.
 */
const maxInHeap = 64;

/**
 * The body of a request. However it comes, and whether it is read or not, it is kept in few parts:
 * Node.js would keep each chunk, and with it the buffer that it came in.
 */
export class RequestBody {
  readonly #request: Readable;
  readonly #usage: ExchangeUsage;
  #parts: Uint8Array[] = [];
  #size = 0;
  #chunks = 0;
  #maxBytes = maxBufferedBytes;
  #isBuffered = false;
  #isDropped = false;
  #isWhole = false;
  #failure: Error | undefined;
  #onChange: (() => void) | undefined;

  constructor(request: Readable, usage: ExchangeUsage) {
    this.#request = request;
    this.#usage = usage;
  }

  /** How much of it has come, in bytes. */
  get size(): number {
    return this.#size;
  }

  /** Takes what comes of it from now on. */
  buffer(): void {
    if (this.#isBuffered) return;
    this.#isBuffered = true;
    // Listeners, since an iterator takes as long as all the rest of a short request.
    this.#request.on("data", this.#take);
    this.#request.on("end", this.#end);
  }

  /**
   * All of it; pending until {@link RequestBody.stop} if the client leaves. It is too large if more
   * than {@link maxBufferedBytes} came before this was called.
   *
   * @param maxBytes how long its message may be
   * @param overhead how much longer the body may be
   * @throws {ConnectError} MESSAGE_TOO_LARGE; OVERLOADED, if all connections keep too much
   */
  readAll(maxBytes: number, overhead: number): Promise<Uint8Array> {
    this.#maxBytes = maxBytes + overhead;
    return new Promise((resolve, reject) => {
      this.#onChange = () => {
        if (this.#failure) reject(this.#failure);
        else if (this.#isTooLarge) reject(messageTooLarge(maxBytes));
        else if (this.#isWhole) resolve(this.#join());
        else return;
        // The exchange lasts longer than what is read of it.
        this.#parts = [];
        this.#onChange = undefined;
      };
      this.#onChange();
      this.buffer();
    });
  }

  /** Leaves what still comes in the stream; once that is full, the client has to wait. */
  stopBuffering(): void {
    this.#request.off("data", this.#take).off("end", this.#end).pause();
    this.#request.push = pushSparingly;
  }

  /**
   * What comes of it, as it comes. Leaving it early keeps the connection.
   *
   * @throws {ConnectError} OVERLOADED, if too much came before it was read
   */
  async *readChunks(): AsyncGenerator<Uint8Array> {
    this.stopBuffering();
    const request = this.#request;
    const chunks = request.iterator({ destroyOnReturn: false });
    try {
      if (this.#isTooLarge) throw overloaded();
      if (this.#size > 0) yield* piecesOf(this.#join());
      if (this.#isWhole) return;
      for (;;) {
        const next = await new Promise<IteratorResult<Uint8Array>>((resolve, reject) => {
          this.#onChange = () => this.#failure && reject(this.#failure);
          this.#onChange();
          chunks.next().then(resolve, reject);
        });
        if (next.done) return;
        yield* piecesOf(detach(next.value));
      }
    } finally {
      chunks.return?.().catch(() => {});
      // The stream notices a turn later that nobody reads any more; what is left is dropped.
      setImmediate(() => request.resume());
    }
  }

  /** Rejects what is being read of it. */
  stop(reason: Error): void {
    this.#failure ??= reason;
    this.#onChange?.();
  }

  /** Drops what was not read, and what still comes. */
  drop(): void {
    this.#parts = [];
    this.#isDropped = true;
    this.#request.resume();
  }

  #take = (chunk: Buffer): void => {
    this.#usage.beginPart();
    this.#size += chunk.length;
    this.#chunks += 1;
    if (this.#chunks > maxChunks && this.#size < this.#chunks * smallAverageBytes) {
      this.#failure ??= malformedRequest(undefined, tooSmall);
      // The client does not heed the reply.
      if (this.#chunks > 2 * maxChunks) this.#request.destroy(this.#failure);
    }
    // What is too much is dropped as it comes.
    if (this.#failure || this.#isTooLarge) {
      this.#isDropped = true;
      this.#parts = [];
    } else {
      this.#parts.push(detach(chunk));
      if (this.#parts.length === maxParts) this.#join();
      this.#usage.keepRequest(chunk.length);
      // Before it is read, it is not known whose share of the memory it takes.
      if (this.#onChange && this.#usage.isCrowded) this.#failure = overloaded();
    }
    this.#onChange?.();
  };

  #end = (): void => {
    // Node.js ends the body of a request that was reset, too.
    if (this.#request.destroyed) return;
    this.#isWhole = true;
    this.#onChange?.();
  };

  get #isTooLarge(): boolean {
    return this.#isDropped || this.#size > this.#maxBytes;
  }

  #join(): Uint8Array {
    const [first, second] = this.#parts;
    if (first && !second && first.length > maxInHeap) return first;
    const all = Buffer.concat(this.#parts);
    this.#parts = [all];
    return all;
  }
}

function* piecesOf(chunk: Uint8Array): Iterable<Uint8Array> {
  for (let start = 0; start < chunk.length; start += pieceBytes) {
    yield chunk.subarray(start, start + pieceBytes);
  }
}

/** Ends a stream that fills up with small chunks while it is not read. */
function pushSparingly(this: Readable & { waitingChunks?: number }, chunk: Uint8Array | null) {
  this.waitingChunks = this.readableLength === 0 ? 0 : (this.waitingChunks ?? 0) + 1;
  const isTooMuch =
    this.waitingChunks > maxWaitingChunks &&
    this.readableLength < this.waitingChunks * smallChunkBytes;
  if (isTooMuch) this.destroy(new Error(tooSmall));
  return Object.getPrototypeOf(this).push.call(this, chunk && detach(chunk));
}

/** The bytes of a chunk without what it was read with, which can be much more. */
function detach(chunk: Uint8Array): Uint8Array {
  return chunk.buffer.byteLength > 2 * chunk.length ? new Uint8Array(chunk) : chunk;
}
