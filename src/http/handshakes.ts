import type { Socket } from "node:net";
import { handleOf } from "./yield-reading.ts";

/** How many connections are read at once before their handshake is over, and how long, in ms. */
const maxRead = 64;
const turnMs = 10;

/** What a client may send meanwhile, if others wait: its chain of certificates fits. */
const maxBytes = 32 * 1024;

/**
 * Makes the set of the connections whose TLS handshake is not over. OpenSSL keeps up to 128 KiB of
 * what it has read of each: if there are many, they are read in turn, and those that send much are
 * closed.
 */
export function createHandshakes() {
  /** Those that are read come first. */
  const pending = new Set<Socket>();
  let timer: NodeJS.Timeout | undefined;

  function takeTurns(): void {
    for (const socket of [...pending].slice(0, maxRead)) {
      pending.delete(socket);
      if (socket.bytesRead > maxBytes) socket.destroy();
      else pending.add(socket);
    }
    let count = 0;
    for (const socket of pending) {
      count += 1;
      if (count <= maxRead) handleOf(socket)?.readStart();
      else handleOf(socket)?.readStop();
    }
    if (count > maxRead) return;
    clearInterval(timer);
    timer = undefined;
  }

  return {
    begin(socket: Socket): void {
      pending.add(socket);
      socket.once("close", () => pending.delete(socket));
      if (pending.size > maxRead) timer ??= setInterval(takeTurns, turnMs).unref();
    },
    end(socket: Socket): void {
      pending.delete(socket);
    },
  };
}
