import type { Socket } from "node:net";
import type { TLSSocket } from "node:tls";
import { handleOf } from "./socket-handle.ts";

/** At least so many unfinished handshakes are read at once, and at least this fraction of all. */
const minRead = 64;
const readFraction = 1 / 16;

/** How long these are read before the next ones are, in milliseconds. */
const turnMs = 10;

/** The most that a client may send for it: enough for any chain of certificates in real use. */
const maxBytes = 32 * 1024;

/**
 * Creates the set of the connections whose TLS handshake is not over. OpenSSL keeps up to 128 KiB of
 * what it has read of each, 3 MB of a chain of 98 KiB, and can take 150 ms to verify that: if there
 * are many, they are read in turn, and the ones that send much are closed.
 */
export function createHandshakes() {
  /** In turn; the first ones are being read. */
  const pending = new Set<Socket>();
  let timer: NodeJS.Timeout | undefined;
  let turnBeganAt = 0;
  /** After a long chain, none is read for as long as the turn took: calls on open connections go first. */
  let restUntil = 0;
  let isSkipping = false;
  /** Whether the event loop has read those that are read: a turn of it can take longer than theirs. */
  let wereRead = false;

  function takeTurns(): void {
    const now = performance.now();
    const read = wereRead ? [...pending].slice(0, maxRead()) : [];
    wereRead = false;
    for (const socket of read) {
      pending.delete(socket);
      if (socket.bytesRead <= maxBytes) {
        pending.add(socket);
      } else {
        socket.destroy();
        restUntil = now + (now - turnBeganAt);
      }
    }
    turnBeganAt = now;
    if (pending.size > 0) {
      startReading();
      return;
    }
    clearInterval(timer);
    timer = undefined;
  }

  function maxRead(): number {
    return Math.max(minRead, pending.size * readFraction);
  }

  function startReading(): void {
    let left = isSkipping || performance.now() < restUntil ? 0 : maxRead();
    if (left > 0) {
      setImmediate(() => {
        wereRead = true;
      });
    }
    for (const socket of pending) {
      left -= 1;
      if (left >= 0) handleOf(socket)?.readStart();
      else handleOf(socket)?.readStop();
    }
  }

  return {
    /**
     * Reads none in the next turn of the event loop: their last bytes can bring requests, for which
     * reading would be stopped again before those are read that have waited.
     */
    skipTurn(): void {
      isSkipping = true;
      startReading();
      setImmediate(() => {
        isSkipping = false;
        startReading();
      });
    },
    begin(socket: Socket): void {
      pending.add(socket);
      socket.once("close", () => pending.delete(socket));
      if (timer) return;
      turnBeganAt = performance.now();
      timer = setInterval(takeTurns, turnMs).unref();
    },
    /** @param tlsSocket the one over the socket */
    end(socket: Socket, tlsSocket: TLSSocket): void {
      pending.delete(socket);
      if (socket.bytesRead <= maxBytes) return;
      if (isDistrusted(tlsSocket)) {
        const now = performance.now();
        restUntil = now + (now - turnBeganAt);
        for (const each of pending) handleOf(each)?.readStop();
      }
      // What came in the same turn is decrypted by then.
      setImmediate(() => {
        if (socket.bytesRead - tlsSocket.bytesRead > maxBytes) tlsSocket.destroy();
      });
    },
  };
}

/** Whether the client showed a certificate that no authority of this service has signed. */
function isDistrusted(socket: TLSSocket): boolean {
  return socket.authorized === false && socket.getPeerCertificate()?.raw !== undefined;
}
