import { constants, fstatSync, openSync, writeSync } from "node:fs";

/** How long to wait before buffered texts are tried again, doubled each time, in milliseconds. */
const minRetryMs = 10;
const maxRetryMs = 1_000;

/** How long a flush waits for a reader, in milliseconds. */
const flushMs = 1_000;

const fd = 2;

export type StandardError = ReturnType<typeof openStandardError>;

/**
 * Opens standard error without ever waiting for its reader: a pipe or a terminal that nobody reads
 * would otherwise block the whole process.
 *
 * @param maxWaitingBytes the most to buffer while it cannot be written; further texts are dropped
 */
export function openStandardError(maxWaitingBytes: number) {
  const output = openWithoutWaiting();
  let waiting = Buffer.alloc(0);
  let timer: NodeJS.Timeout | undefined;
  let retryMs = minRetryMs;
  let dropped = 0;
  let reported = 0;

  function writeWaiting(): void {
    timer = undefined;
    try {
      while (waiting.length > 0) {
        waiting = waiting.subarray(writeSync(output, waiting));
        retryMs = minRetryMs;
      }
    } catch {
      timer = setTimeout(writeWaiting, retryMs).unref();
      retryMs = Math.min(2 * retryMs, maxRetryMs);
    }
    if (dropped === reported || waiting.length > maxWaitingBytes / 2) return;
    const count = dropped - reported;
    reported = dropped;
    opened.onRoom(count);
  }

  const opened = {
    /** Writes text; buffers or drops it if nobody reads, or the disk is full. Never throws. */
    write(text: string): void {
      const bytes = Buffer.from(text);
      if (waiting.length > 0 && waiting.length + bytes.length > maxWaitingBytes) {
        dropped += 1;
        return;
      }
      waiting = waiting.length > 0 ? Buffer.concat([waiting, bytes]) : bytes;
      if (timer === undefined) writeWaiting();
    },
    /**
     * Writes the buffered texts, which the end of the process would lose, until nobody has read any
     * for a second.
     */
    flush(): void {
      const pause = new Int32Array(new SharedArrayBuffer(4));
      for (let left = flushMs; waiting.length > 0 && left > 0; left -= minRetryMs) {
        const { length } = waiting;
        writeWaiting();
        if (waiting.length < length) left = flushMs;
        else Atomics.wait(pause, 0, 0, minRetryMs);
      }
    },
    get dropped(): number {
      return dropped;
    },
    /** Called when there is room again, with the number of texts dropped before. */
    onRoom(_dropped: number): void {},
  };
  return opened;
}

/** A descriptor of standard error whose writes fail instead of waiting. */
function openWithoutWaiting(): number {
  if (fstatSync(fd).isFile()) return fd;
  try {
    // A new descriptor, since other processes that share the old one expect blocking writes.
    return openSync("/dev/stderr", constants.O_WRONLY | constants.O_NONBLOCK | constants.O_NOCTTY);
  } catch {
    // Neither a socket nor another user's file can be opened. Node.js makes a socket or a pipe
    // non-blocking on first access, and nothing makes it blocking again.
    return process.stderr.fd;
  }
}
