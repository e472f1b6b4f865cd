import type { Socket } from "node:net";
import { createMemoryGauge, shortBytes } from "../memory.ts";
import { ConnectionUsage } from "./connection-usage.ts";
import { createHandshakes } from "./handshakes.ts";
import { TotalUsage } from "./total-usage.ts";
import { type Reading, yieldReading } from "./yield-reading.ts";

/** When memory is short, the share of the limit left to connections on which no call has run. */
const untriedShare = 1 / 4;

/** How many of those that keep much are closed in one turn of the event loop. */
const closedAtOnce = 64;

/** See {@link createConnections}. */
export type Connections = ReturnType<typeof createConnections>;

/**
 * Makes the set of the connections of a server, on all of its ports. When it is full and one more
 * comes, the one is closed that went longest without a running call or a watch: the new one, if
 * all others have some. When memory is short, those make room on which no call has run, and those
 * are closed that keep much though no call runs on them.
 *
 * @param max how many there may be
 * @param memoryBytes tells the memory of the process
 */
export function createConnections(max: number, memoryBytes = createMemoryGauge()) {
  const all = new Map<string, Entry>();
  const shortAbove = shortBytes(max);
  const isMemoryShort = () => memoryBytes() > shortAbove;
  const handshakes = createHandshakes();
  const total = new TotalUsage({ isMemoryShort, onFlood: pauseReading, onGrowth: relieve });
  let isPaused = false;
  let isRelieving = false;

  function pauseReading(): void {
    if (isPaused) return;
    isPaused = true;
    setImmediate(() => {
      isPaused = false;
    });
    yieldReading(all.values());
  }

  function countUntried(): number {
    let count = 0;
    for (const { usage } of all.values()) if (usage.isUntried) count += 1;
    return count;
  }

  /** If memory is short, closes those that keep much, once the calls run whose requests are there. */
  function relieve(): void {
    if (isRelieving || !isMemoryShort()) return;
    isRelieving = true;
    pauseReading();
    setImmediate(closeExpendable);
  }

  function closeExpendable(): void {
    isRelieving = false;
    let left = closedAtOnce;
    while (left > 0 && closeIdlest("isExpendable")) left -= 1;
    if (left === 0 && isMemoryShort()) setImmediate(closeExpendable);
  }

  function closeIdlest(mark: "isUntried" | "isReplaceable" | "isExpendable"): boolean {
    let idlest: string | undefined;
    let since = Number.POSITIVE_INFINITY;
    for (const [key, { usage }] of all) {
      if (usage.usedAt >= since || !usage[mark]) continue;
      idlest = key;
      since = usage.usedAt;
    }
    if (idlest === undefined) return false;
    const entry = all.get(idlest);
    (entry?.reader ?? entry?.socket)?.destroy();
    // It tells of its end some turns later, when many more may have come.
    return all.delete(idlest);
  }

  return {
    /** Registers a new one. */
    add(socket: Socket): void {
      if (isMemoryShort() && countUntried() > max * untriedShare) closeIdlest("isUntried");
      if (all.size >= max && !closeIdlest("isReplaceable")) {
        socket.destroy();
        return;
      }
      const key = keyOf(socket);
      const usage = new ConnectionUsage(total);
      const entry: Entry = { socket, usage, reader: undefined };
      all.set(key, entry);
      handshakes.begin(socket);
      socket.once("close", () => {
        usage.close();
        if (all.get(key) === entry) all.delete(key);
      });
    },
    /**
     * The usage of one, given what requests are read from: on TLS, the socket that encrypts it.
     * Undefined if it was closed meanwhile.
     */
    usageOf(socket: Socket): ConnectionUsage | undefined {
      const entry = all.get(keyOf(socket));
      if (!entry) return undefined;
      entry.reader = socket;
      handshakes.end(entry.socket);
      return entry.usage;
    },
  };
}

interface Entry extends Reading {
  readonly socket: Socket;
}

/** The same for a socket and the one that encrypts it. */
function keyOf({ remoteAddress, remotePort, localAddress, localPort }: Socket): string {
  return `${remoteAddress} ${remotePort} ${localAddress} ${localPort}`;
}
