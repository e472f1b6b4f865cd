import type { Socket } from "node:net";
import type { ConnectionUsage } from "./connection-usage.ts";

/** A connection that is read. */
export interface Reading {
  readonly usage: ConnectionUsage;
  /** What requests are read from: the socket, or the one that encrypts it; undefined until then. */
  reader: Socket | undefined;
  isHttp2: boolean;
}

/** What reads from a socket. There is no public way to stop it that HTTP/2 does not undo. */
interface Handle {
  /** False if HTTP/1.1 has stopped reading. */
  readonly reading: boolean;
  readonly bytesRead: number;
  /** Bytes that are yet to be written. */
  readonly writeQueueSize: number;
  readStop(): number;
  readStart(): number;
}

/** A connection that is not read for now, and what decides when it is read again. */
interface Stopped {
  readonly reading: Reading;
  readonly handle: Handle;
  rank: number;
  /** How many of the same rank and caller come before it. */
  position: number;
  order: number;
}

/** What reads from a socket, unless that has closed. */
export function handleOf(socket: Socket | undefined): Handle | undefined {
  return (socket as { _handle?: Handle } | undefined)?._handle;
}

/** How much time of a turn a connection may take and count as one that takes little, in milliseconds. */
const littleMs = 4;

/** How many ranks there are; every eighth round begins with another one, so that each is read. */
const ranks = 4;
const roundsPerTurn = 8;

/** How often to look whether what is to be written was, in milliseconds. */
const writtenCheckMs = 100;

/**
 * Makes what leaves the rest of what clients have sent to the next turns of the event loop: in one
 * turn, much could be read from many connections before anything of it can end. They go on in this
 * order:
 *
 * - by rank: those that take little time in a turn come first, and of these and of the others, those
 *   of authorised callers;
 * - in a rank, one of each caller, then a second one of each, and so on;
 * - of a caller, those without a request so far, the last one first, since a crowd of them could take
 *   seconds; then the one that was not read for longest.
 *
 * @param onStart called when they go on, before the turn in which they are read
 */
export function createReadingTurns(onStart: () => void) {
  let stopped: Stopped[] | undefined;
  let round = 0;

  function stop(reading: Reading): void {
    const handle = handleOf(reading.reader);
    if (!stopped || !handle?.reading || isWriting(reading, handle)) return;
    // It is about to be read again.
    if (Object.hasOwn(handle, "readStart")) return;
    handle.readStop();
    // HTTP/1.1 would start again after each request of what it has read.
    handle.readStart = () => 0;
    stopped.push({ reading, handle, rank: 0, position: 0, order: 0 });
  }

  function start(): void {
    const all = stopped ?? [];
    stopped = undefined;
    round += 1;
    // The first rank begins all other rounds.
    const turn = round % roundsPerTurn === 0 ? round / roundsPerTurn : 0;
    sort(all, turn && 1 + (turn % (ranks - 1)));
    startReading(all);
    onStart();
  }

  return {
    /** Leaves what is to be read to later turns. */
    yield(connections: Iterable<Reading>): void {
      if (stopped) return;
      const some: Stopped[] = [];
      stopped = some;
      for (const reading of connections) stop(reading);
      setImmediate(() => {
        // What they take in this turn is known at its end.
        some.forEach(rate);
        const count = some.length;
        // The system tells of sockets in the order in which they became ready or, if there is
        // something to be read, were waited for. It drops those that nobody waits for in the turn in
        // between.
        setImmediate(() => {
          some.slice(count).forEach(rate);
          start();
        });
      });
    },
    /** Adds a connection that is to be read from now on, after those that wait to be read again. */
    add(reading: Reading): void {
      if (stopped) queueMicrotask(() => stop(reading));
    },
  };
}

/** Notes of a connection what decides when it is read again. */
function rate(each: Stopped): void {
  const { handle } = each;
  const { usage } = each.reading;
  const now = performance.now();
  each.rank = 2 * Number(usage.updateMostMs(now) > littleMs) + Number(!usage.isAuthorised);
  const readAt = usage.updateReadAt(handle.bytesRead, now);
  each.order = usage.isNew ? -readAt : readAt;
}

/** Sorts connections by when they are read again, beginning with a rank. */
function sort(stopped: Stopped[], first: number): void {
  stopped.sort((a, b) => a.order - b.order);
  const counts = new Map<string, number>();
  for (const each of stopped) {
    each.rank = (each.rank - first + ranks) % ranks;
    const key = `${each.rank} ${each.reading.usage.caller}`;
    each.position = counts.get(key) ?? 0;
    counts.set(key, each.position + 1);
  }
  stopped.sort((a, b) => a.rank - b.rank || a.position - b.position);
}

/** Whether HTTP/2 itself does not read for now, and begins again once something was written. */
function isWriting({ reader, isHttp2 }: Reading, { writeQueueSize }: Handle): boolean {
  // What was left to write when a socket closed is never written.
  return isHttp2 && writeQueueSize > 0 && reader?.destroyed === false;
}

/** Goes on reading, by HTTP/2 once what is to be written was. */
function startReading(stopped: Stopped[]): void {
  const waiting: Stopped[] = [];
  for (const each of stopped) {
    const { reading, handle } = each;
    if (handle.reading && isWriting(reading, handle)) {
      waiting.push(each);
      continue;
    }
    // This uncovers the method of its prototype.
    Reflect.deleteProperty(handle, "readStart");
    if (handle.reading) handle.readStart();
  }
  if (waiting.length > 0) setTimeout(startReading, writtenCheckMs, waiting).unref();
}
