import type { Socket } from "node:net";
import { handleOf } from "./yield-reading.ts";

/** How many connections are read at once before their handshake is over, at least, and which part of them. */
const minRead = 64;
const readPart = 1 / 16;

/** How long they are read until others are, in milliseconds. */
const turnMs = 10;

/** The most that a client may send meanwhile, if others wait: its chain of certificates fits. */
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
    const maxRead = Math.max(minRead, pending.size * readPart);
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
      if (pending.size > minRead) timer ??= setInterval(takeTurns, turnMs).unref();
    },
    end(socket: Socket): void {
      pending.delete(socket);
    },
  };
}
