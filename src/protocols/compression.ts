import { AsyncLocalStorage } from "node:async_hooks";
import { promisify } from "node:util";
import { brotliCompress, constants, gunzipSync } from "node:zlib";
import type { Compression } from "@connectrpc/connect/protocol";
import { compressionBrotli, compressionGzip } from "@connectrpc/connect-node";
import type { ExchangeUsage } from "../http/exchange-usage.ts";
import { FairQueue } from "../http/fair-queue.ts";
import { malformedRequest, messageTooLarge } from "../service/errors.ts";

/** How many messages are compressed at once, each of which takes some 260 KB. */
const maxAtOnce = 8;

/** How many slots unpacking by brotli takes: 300 bytes can make that take 16 MB. */
const brotliWeight = 4;

/** By default it would take some 4 ms for a record. */
const brotliOptions = { params: { [constants.BROTLI_PARAM_QUALITY]: 4 } };

/** The usage of the exchange that is served, which Connect's handlers do not pass to a compression. */
export const currentUsage = new AsyncLocalStorage<ExchangeUsage>();

/** Creates what compresses replies and unpacks requests, in turn among callers. */
export function createCompressions(): Compression[] {
  const queue = new FairQueue(maxAtOnce, maxAtOnce, 1);

  async function inTurn<T>(weight: number, work: () => Promise<T>): Promise<T> {
    const usage = currentUsage.getStore() as ExchangeUsage;
    await usage.waitForTurn(queue, weight);
    // Until then, what is to be compressed counts as being made.
    usage.endMaking();
    try {
      return await work();
    } finally {
      queue.release(weight);
    }
  }

  const compressBrotli = promisify(brotliCompress);
  return [
    {
      name: compressionGzip.name,
      compress: (bytes) => inTurn(1, () => compressionGzip.compress(bytes)),
      // At most 0.3 ms for 64 KiB, and a tenth of the CPU that another thread for it takes.
      decompress: async (bytes, readMaxBytes) => gunzip(bytes, readMaxBytes),
    },
    {
      name: compressionBrotli.name,
      compress: (bytes) => inTurn(1, () => compressBrotli(bytes, brotliOptions)),
      decompress: (bytes, readMaxBytes) =>
        inTurn(brotliWeight, () => compressionBrotli.decompress(bytes, readMaxBytes)),
    },
  ];
}

function gunzip(bytes: Uint8Array, maxBytes: number): Uint8Array<ArrayBuffer> {
  if (bytes.length === 0) return new Uint8Array();
  try {
    return gunzipSync(bytes, { maxOutputLength: maxBytes });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ERR_BUFFER_TOO_LARGE") {
      throw messageTooLarge(maxBytes);
    }
    throw malformedRequest(error);
  }
}
