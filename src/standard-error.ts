import { constants, fstatSync, openSync, writeSync } from "node:fs";

/** The most bytes to keep while they cannot be written; what comes on top is dropped. */
const maxWaitingBytes = 64 * 1024;

/** How often what waits is tried again, and how long it has when the process exits, in milliseconds. */
const retryMs = 10;
const exitMs = 1_000;

/** See {@link openStandardError}. */
export interface StandardError {
  /** Writes text, which it keeps or drops if nobody reads it, or the disk is full. It does not throw. */
  write(text: string): void;
  /** How many texts were dropped. */
  readonly dropped: number;
}

/**
 * Opens standard error so that nothing ever waits for its reader: a pipe or a terminal that is not
 * read would otherwise stop the whole process.
 *
 * @param onRoom called once there is room again, with how many texts were dropped before
 */
export function openStandardError(onRoom?: (dropped: number) => void): StandardError {
  const fd = openWithoutWaiting();
  let waiting = Buffer.alloc(0);
  let timer: NodeJS.Timeout | undefined;
  let dropped = 0;
  let reported = 0;

  function writeWaiting(): void {
    timer = undefined;
    try {
      while (waiting.length > 0) waiting = waiting.subarray(writeSync(fd, waiting));
    } catch {
      timer = setTimeout(writeWaiting, retryMs).unref();
    }
    if (dropped === reported || waiting.length > maxWaitingBytes / 2) return;
    const count = dropped - reported;
    reported = dropped;
    onRoom?.(count);
  }

  process.on("exit", () => {
    const pause = new Int32Array(new SharedArrayBuffer(4));
    for (let left = exitMs; waiting.length > 0 && left > 0; left -= retryMs) {
      writeWaiting();
      if (waiting.length > 0) Atomics.wait(pause, 0, 0, retryMs);
    }
  });

  return {
    write(text) {
      const bytes = Buffer.from(text);
      if (waiting.length > 0 && waiting.length + bytes.length > maxWaitingBytes) {
        dropped += 1;
        return;
      }
      waiting = waiting.length > 0 ? Buffer.concat([waiting, bytes]) : bytes;
      if (timer === undefined) writeWaiting();
    },
    get dropped() {
      return dropped;
    },
  };
}

/** A descriptor of standard error whose writes fail instead of waiting. */
function openWithoutWaiting(): number {
  // Node.js makes a pipe or a socket non-blocking when it is first asked for, but not a terminal.
  const { fd } = process.stderr;
  if (fstatSync(fd).isFile()) return fd;
  try {
    // Opened again, since others that share it would not expect that of theirs.
    return openSync("/dev/stderr", constants.O_WRONLY | constants.O_NONBLOCK | constants.O_NOCTTY);
  } catch {
    // A socket cannot be opened, nor what belongs to another user.
    return fd;
  }
}
