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

/** What reads from a socket, unless that has closed. */
export function handleOf(socket: Socket | undefined): Handle | undefined {
  return (socket as { _handle?: Handle } | undefined)?._handle;
}

/** How much time of a turn a connection may take and still be read among the first, in milliseconds. */
const littleMs = 4;

/** How often to look whether what is to be written was, in milliseconds. */
const writtenCheckMs = 100;

/**
 * Leaves the rest of what clients have sent to the next turns of the event loop: in one turn, much
 * could be read from many connections before anything of it can end. Those that take little time in
 * a turn come first; of these and of the others, those of authorised callers.
 */
export function yieldReading(connections: Iterable<Reading>): void {
  const stopped: [Handle, ConnectionUsage][] = [];
  for (const { reader, usage } of connections) {
    const handle = handleOf(reader);
    // While something is to be written, HTTP/2 itself does not read.
    if (!handle?.reading || handle.writeQueueSize > 0) continue;
    // It is about to be read again, so that those of all ranks are.
    if (Object.hasOwn(handle, "readStart")) continue;
    handle.readStop();
    // HTTP/1.1 would go on behind each request of what it has read.
    handle.readStart = () => 0;
    stopped.push([handle, usage]);
  }
  // What they take in this turn is known at its end.
  setImmediate(() => {
    const now = performance.now();
    const ranks: Handle[][] = [[], [], [], []];
    for (const [handle, usage] of stopped) {
      const rank = 2 * Number(usage.updateMostMs(now) > littleMs) + Number(!usage.isAuthorised);
      ranks[rank]?.push(handle);
    }
    startInTurn(ranks);
  });
}

/** Goes on reading, from those of one rank in each turn. */
function startInTurn([first = [], ...others]: Handle[][]): void {
  startReading(first);
  if (others.length > 0) setImmediate(startInTurn, others);
}

/** Goes on reading, from what has something to write once that was written. */
function startReading(handles: Handle[]): void {
  const waiting: Handle[] = [];
  for (const handle of handles) {
    if (handle.reading && handle.writeQueueSize > 0) {
      waiting.push(handle);
      continue;
    }
    // This uncovers the method of its prototype.
    Reflect.deleteProperty(handle, "readStart");
    if (handle.reading) handle.readStart();
  }
  if (waiting.length > 0) setTimeout(startReading, writtenCheckMs, waiting).unref();
}
