import { constants, fstatSync, openSync, writeSync } from "node:fs";

/** The most bytes to keep while they cannot be written; what comes on top is dropped. */
const maxWaitingBytes = 64 * 1024;

/** How often what waits is tried again, and how long a flush takes at most, in milliseconds. */
const retryMs = 10;
const flushMs = 1_000;

const fd = 2;

/** See {@link openStandardError}. */
export type StandardError = ReturnType<typeof openStandardError>;

/**
 * Opens standard error so that nothing ever waits for its reader: a pipe or a terminal that is not
 * read would otherwise stop the whole process.
 */
export function openStandardError() {
  const output = openWithoutWaiting();
  let waiting = Buffer.alloc(0);
  let timer: NodeJS.Timeout | undefined;
  let dropped = 0;
  let reported = 0;

  function writeWaiting(): void {
    timer = undefined;
    try {
      while (waiting.length > 0) waiting = waiting.subarray(writeSync(output, waiting));
    } catch {
      timer = setTimeout(writeWaiting, retryMs).unref();
    }
    if (dropped === reported || waiting.length > maxWaitingBytes / 2) return;
    const count = dropped - reported;
    reported = dropped;
    opened.onRoom(count);
  }

  const opened = {
    /** Writes text, which it keeps or drops if nobody reads it, or the disk is full. It does not throw. */
    write(text: string): void {
      const bytes = Buffer.from(text);
      if (waiting.length > 0 && waiting.length + bytes.length > maxWaitingBytes) {
        dropped += 1;
        return;
      }
      waiting = waiting.length > 0 ? Buffer.concat([waiting, bytes]) : bytes;
      if (timer === undefined) writeWaiting();
    },
    /** Writes what waits, for at most a second: the end of the process would lose it. */
    flush(): void {
      const pause = new Int32Array(new SharedArrayBuffer(4));
      for (let left = flushMs; waiting.length > 0 && left > 0; left -= retryMs) {
        writeWaiting();
        if (waiting.length > 0) Atomics.wait(pause, 0, 0, retryMs);
      }
    },
    /** How many texts were dropped. */
    get dropped(): number {
      return dropped;
    },
    /** Called once there is room again, with how many texts were dropped before. */
    onRoom(_dropped: number): void {},
  };
  return opened;
}

/** A descriptor of standard error whose writes fail instead of waiting. */
function openWithoutWaiting(): number {
  if (fstatSync(fd).isFile()) return fd;
  try {
    // Opened again, since others that share the first expect their writes to wait.
    return openSync("/dev/stderr", constants.O_WRONLY | constants.O_NONBLOCK | constants.O_NOCTTY);
  } catch {
    // A socket cannot be opened, nor what belongs to another user. Node.js makes a socket or a pipe
    // non-blocking when it is first asked for, and nothing makes it blocking again.
    return process.stderr.fd;
  }
}
