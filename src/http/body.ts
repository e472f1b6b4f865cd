import type { Readable } from "node:stream";

/**
 * Reads all of a body. It is kept in one piece, however small the parts are in which it comes. It is
 * pending if the client leaves.
 *
 * @returns undefined if it is longer than `limit` bytes, of which the rest is left unread
 */
export function readBody(request: Readable, limit: number): Promise<Buffer | undefined> {
  return new Promise((resolve) => {
    let body: Buffer = Buffer.alloc(0);
    let size = 0;
    const onData = (chunk: Buffer) => {
      const end = size + chunk.length;
      if (end > limit) {
        request.off("data", onData).off("end", onEnd);
        resolve(undefined);
        return;
      }
      // Also a single one is copied: V8 would move a small one out of its heap for the first view on it.
      if (end > body.length) {
        const larger = Buffer.allocUnsafe(Math.min(2 * end, limit));
        body.copy(larger, 0, 0, size);
        body = larger;
      }
      chunk.copy(body, size);
      size = end;
    };
    const onEnd = () => {
      // Node.js ends the body of a request that was reset, too.
      if (!request.destroyed) resolve(body.subarray(0, size));
    };
    request.on("data", onData).on("end", onEnd);
    // Node.js ends a stream without bytes also if nobody has asked for them yet.
    if (request.readableEnded) onEnd();
  });
}
