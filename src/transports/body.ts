import type { IncomingMessage } from "node:http";
import { Code, ConnectError } from "@connectrpc/connect";

/**
 * All of the body of a request.
 *
 * @param tooLarge makes the error if it is longer than `maxBytes`, of its length if that is known
 * @throws {ConnectError} CANCELLED, if the client leaves before
 */
export function readBody(
  req: IncomingMessage,
  maxBytes: number,
  tooLarge: (declaredBytes?: number) => Error,
): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    if (req.destroyed && !req.readableEnded) {
      reject(left());
      return;
    }
    const declaredBytes = Number(req.headers["content-length"] ?? 0);
    if (declaredBytes > maxBytes) {
      reject(tooLarge(declaredBytes));
      return;
    }
    const chunks: Buffer[] = [];
    let size = 0;
    // Listeners, since an iterator takes as long as all the rest of a short request.
    req.on("data", (chunk: Buffer) => {
      size += chunk.length;
      // What still comes is dropped as it comes.
      if (size > maxBytes) reject(tooLarge());
      else chunks.push(chunk);
    });
    req.once("end", () => {
      const [only] = chunks;
      resolve(only !== undefined && chunks.length === 1 ? only : Buffer.concat(chunks));
    });
    req.once("error", () => reject(left()));
    req.once("close", () => {
      if (!req.readableEnded) reject(left());
    });
  });
}

function left(): ConnectError {
  return new ConnectError("the client left", Code.Canceled);
}
