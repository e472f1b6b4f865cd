import { promisify } from "node:util";
import { brotliCompress, constants } from "node:zlib";
import { Code, ConnectError } from "@connectrpc/connect";
import type { Compression } from "@connectrpc/connect/protocol";
import { compressionBrotli, compressionGzip } from "@connectrpc/connect-node";
import { malformedRequest, messageTooLarge } from "../failures.ts";
import { createQueue } from "../turns.ts";

/** How many messages to compress or unpack at once; each can take some megabytes. */
const maxAtOnce = 8;

/** At the default quality, a list of 1 MiB takes most of a second. */
const brotliOptions = { params: { [constants.BROTLI_PARAM_QUALITY]: 4 } };

/**
 * Creates the compressions of replies and requests. At the limit, messages wait: a reply cannot be
 * rejected, since its call has been made.
 */
export function createCompressions(): Compression[] {
  const inTurn = createQueue(maxAtOnce);
  const compressBrotli = promisify(brotliCompress);

  const bound = ({ name, compress, decompress }: Compression): Compression => ({
    name,
    compress: (bytes) => inTurn(() => compress(bytes)),
    async decompress(bytes, maxBytes) {
      try {
        return await inTurn(() => decompress(bytes, maxBytes));
      } catch (error) {
        const isTooLarge = ConnectError.from(error).code === Code.ResourceExhausted;
        throw isTooLarge ? messageTooLarge(maxBytes) : malformedRequest(error);
      }
    },
  });

  const brotli = (bytes: Uint8Array) => compressBrotli(bytes, brotliOptions);
  return [bound(compressionGzip), bound({ ...compressionBrotli, compress: brotli })];
}
