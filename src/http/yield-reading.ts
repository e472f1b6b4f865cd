import type { Socket } from "node:net";
import type { ConnectionUsage } from "./connection-usage.ts";

/** A connection that is read. */
export interface Reading {
  readonly usage: ConnectionUsage;
  /** What requests are read from: the socket, or the one that encrypts it; undefined until then. */
  reader: Socket | undefined;
}

/** What reads from a socket. There is no public way to stop it that HTTP/2 does not undo. */
interface Handle {
  /** False if HTTP/1.1 has stopped reading. */
  readonly reading: boolean;
  /** Bytes that are yet to be written. */
  readonly writeQueueSize: number;
  readStop(): number;
  readStart(): number;
}

/** How often to look whether what is to be written was, in milliseconds. */
const writtenCheckMs = 100;

/**
 * Leaves the rest of what clients have sent to the next turns of the event loop: in one turn, much
 * could be read from many connections before anything of it can end. Those from which nothing was
 * read come first.
 */
export function yieldReading(connections: Iterable<Reading>): void {
  const [idle, busy]: [Handle[], Handle[]] = [[], []];
  for (const { reader, usage } of connections) {
    const handle = (reader as { _handle?: Handle } | undefined)?._handle;
    // While something is to be written, HTTP/2 itself does not read.
    if (!handle?.reading || handle.writeQueueSize > 0) continue;
    handle.readStop();
    (usage.hasBegun ? busy : idle).push(handle);
  }
  setImmediate(() => {
    startReading(idle);
    setImmediate(startReading, busy);
  });
}

/** Goes on reading, from what has something to write once that was written. */
function startReading(handles: Handle[]): void {
  const waiting: Handle[] = [];
  for (const handle of handles) {
    if (!handle.reading) continue;
    if (handle.writeQueueSize > 0) waiting.push(handle);
    else handle.readStart();
  }
  if (waiting.length > 0) setTimeout(startReading, writtenCheckMs, waiting).unref();
}
