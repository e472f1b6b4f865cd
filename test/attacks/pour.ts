import { setTimeout as delay, setImmediate as nextTurn } from "node:timers/promises";
import { type Target, within } from "./target.ts";

/** What is sent on every connection. */
interface Stream {
  /** What is written once, before the rest. */
  first?: Buffer;
  /** What is written over and over. */
  bytes: Buffer;
}

/**
 * Writes the same over and over on 60 connections by HTTP/1.1, and on a new one for each that is
 * closed, for three seconds.
 */
export async function pour(target: Target, { first, bytes }: Stream): Promise<number> {
  const end = performance.now() + 3_000;
  const isOver = () => performance.now() > end;
  let count = 0;
  const connections = Array.from({ length: 60 }, async () => {
    while (!isOver()) {
      const { socket, tcp } = await target.open("http", { isKnown: true, mayFail: true });
      if (first) socket.write(first);
      while (!isOver() && !tcp.destroyed && !socket.destroyed) {
        count += 1;
        await within(new Promise((resolve) => socket.write(bytes, resolve)), 1_000, undefined);
        await nextTurn();
      }
      // Handshakes take time by themselves.
      await delay(250);
    }
  });
  await Promise.all(connections);
  return count;
}
