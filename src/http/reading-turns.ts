import type { Socket } from "node:net";
import type { ConnectionUsage } from "./connection-usage.ts";
import { type Handle, handleOf } from "./socket-handle.ts";

/** A connection that is read. */
export interface Reading {
  readonly usage: ConnectionUsage;
  /** Where requests are read from: the socket, or the TLS socket over it; undefined until then. */
  source: Socket | undefined;
  isHttp2: boolean;
}

/** A connection that is not read for now, and what decides when it is read again. */
interface Stopped {
  readonly reading: Reading;
  readonly handle: Handle;
  rank: number;
  /** How many of the same rank and caller come before it. */
  position: number;
  /** Within its rank and caller, the lowest comes first. */
  order: number;
}

/** The most time in one turn that counts as little, in milliseconds. */
const littleMs = 4;

/** How many ranks there are, and after how many rounds one begins with a lower one. */
const ranks = 4;
const detourRounds = 8;

/** How often to check whether pending writes are done, in milliseconds. */
const writtenCheckMs = 100;

/**
 * Defers reading to later turns of the event loop: in one turn, much could be read from many
 * connections before any of it is done. They are read again in this order:
 *
 * - by rank: first those that take little time in a turn; among these, and among the others, first
 *   those of authorised callers;
 * - within a rank, one connection of each caller, then a second one of each, and so on;
 * - of one caller, first those without a request so far, the newest first, since a crowd of them could
 *   take seconds; then the one that was not read for longest.
 *
 * @param onStart called when they are about to be read again, before the turn in which they are
 */
export function createReadingTurns(onStart: () => void) {
  let stopped: Stopped[] | undefined;
  let round = 0;

  function stop(reading: Reading): void {
    const handle = handleOf(reading.source);
    if (!stopped || !handle?.reading || isWriting(reading, handle)) return;
    // It is about to be read again.
    if (Object.hasOwn(handle, "readStart")) return;
    handle.readStop();
    // HTTP/1.1 would start again after each request of what it has read.
    handle.readStart = () => 0;
    stopped.push({ reading, handle, rank: 0, position: 0, order: 0 });
  }

  function start(all: Stopped[]): void {
    stopped = undefined;
    round += 1;
    sort(all, firstRank(round));
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
        // The system reports sockets in the order in which they became ready or, if there is
        // something to be read, were waited for. It drops those that nobody waits for in the turn in
        // between.
        setImmediate(() => {
          some.slice(count).forEach(rate);
          start(some);
        });
      });
    },
    /** Adds a connection that is to be read from now on, after those that wait to be read again. */
    add(reading: Reading): void {
      if (stopped) queueMicrotask(() => stop(reading));
    },
  };
}

/** The rank that a round begins with: now and then a lower one, so that each is read. */
function firstRank(round: number): number {
  return round % detourRounds === 0 ? 1 + ((round / detourRounds) % (ranks - 1)) : 0;
}

/** Notes what decides when a connection is read again. */
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
    // From here on, ranks count from the one that begins this round.
    each.rank = (each.rank - first + ranks) % ranks;
    const key = `${each.rank} ${each.reading.usage.caller}`;
    each.position = counts.get(key) ?? 0;
    counts.set(key, each.position + 1);
  }
  stopped.sort((a, b) => a.rank - b.rank || a.position - b.position);
}

/** Whether HTTP/2 itself does not read for now, and begins again once something was written. */
function isWriting({ source, isHttp2 }: Reading, { writeQueueSize }: Handle): boolean {
  // What was left to write when a socket closed is never written.
  return isHttp2 && writeQueueSize > 0 && source?.destroyed === false;
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
