import { promisify } from "node:util";
import { brotliCompress, constants } from "node:zlib";
import type { Compression } from "@connectrpc/connect/protocol";
import { compressionBrotli, compressionGzip } from "@connectrpc/connect-node";
import { Semaphore } from "../semaphore.ts";

/** How many messages are compressed or unpacked at once, each of which takes some 260 KB. */
const maxAtOnce = 8;

/** By default it would take some 4 ms for a record. */
const brotliOptions = { params: { [constants.BROTLI_PARAM_QUALITY]: 4 } };

/** Makes what compresses replies and unpacks requests, a few at a time. */
export function createCompressions(): Compression[] {
  const running = new Semaphore(maxAtOnce);

  async function inTurn<T>(work: () => Promise<T>): Promise<T> {
    await new Promise<void>((resolve) => running.acquire(1, resolve));
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
