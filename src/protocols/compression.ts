import { AsyncLocalStorage } from "node:async_hooks";
import { promisify } from "node:util";
import { brotliCompress, constants } from "node:zlib";
import type { Compression } from "@connectrpc/connect/protocol";
import { compressionBrotli, compressionGzip } from "@connectrpc/connect-node";
import { Semaphore } from "../semaphore.ts";

/** How many messages are compressed or unpacked at once, each of which takes some 260 KB. */
const maxAtOnce = 8;

/** By default it would take some 4 ms for a record. */
const brotliOptions = { params: { [constants.BROTLI_PARAM_QUALITY]: 4 } };

/** The signal of the call that is served, since Connect's handlers do not pass it to a compression. */
export const callSignal = new AsyncLocalStorage<AbortSignal>();

/** Makes what compresses replies and unpacks requests, a few at a time. */
export function createCompressions(): Compression[] {
  const running = new Semaphore(maxAtOnce);

  async function inTurn<T>(work: () => Promise<T>): Promise<T> {
    const signal = callSignal.getStore();
    await new Promise<void>((resolve, reject) => {
      const stopWaiting = running.acquire(1, resolve);
      signal?.addEventListener("abort", () => {
        stopWaiting();
        reject(signal.reason);
      });
    });
    try {
      return await work();
    } finally {
      running.release(1);
    }
  }

  const compressBrotli = promisify(brotliCompress);
  const brotli: Compression = {
    ...compressionBrotli,
    compress: (bytes) => compressBrotli(bytes, brotliOptions),
  };
  return [compressionGzip, brotli].map(({ name, compress, decompress }) => ({
    name,
    compress: (bytes) => inTurn(() => compress(bytes)),
    decompress: (bytes, readMaxBytes) => inTurn(() => decompress(bytes, readMaxBytes)),
  }));
}
