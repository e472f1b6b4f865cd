import { promisify } from "node:util";
import { brotliCompress, constants } from "node:zlib";
import type { Compression } from "@connectrpc/connect/protocol";
import { compressionBrotli, compressionGzip } from "@connectrpc/connect-node";
import { createSlots } from "../calls/slots.ts";

/** How many messages are compressed or unpacked at once, each of which can take some megabytes. */
const maxAtOnce = 8;

/** By default it would take most of a second for a page. */
const brotliOptions = { params: { [constants.BROTLI_PARAM_QUALITY]: 4 } };

/**
 * Creates what compresses replies and unpacks requests. Both reject with OVERLOADED if too much of
 * that is going on.
 */
export function createCompressions(): Compression[] {
  const slots = createSlots(maxAtOnce);
  const compressBrotli = promisify(brotliCompress);

  async function inSlot<T>(work: () => Promise<T>): Promise<T> {
    const release = slots.acquire();
    return work().finally(release);
  }

  return [
    {
      name: compressionGzip.name,
      compress: (bytes) => inSlot(() => compressionGzip.compress(bytes)),
      decompress: (bytes, max) => inSlot(() => compressionGzip.decompress(bytes, max)),
    },
    {
      name: compressionBrotli.name,
      compress: (bytes) => inSlot(() => compressBrotli(bytes, brotliOptions)),
      decompress: (bytes, max) => inSlot(() => compressionBrotli.decompress(bytes, max)),
    },
  ];
}
