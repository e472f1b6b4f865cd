import type { Socket } from "node:net";
import type { TLSSocket } from "node:tls";
import { createMemoryGauge, shortBytes } from "../memory.ts";
import { ConnectionUsage } from "./connection-usage.ts";
import { createHandshakes } from "./handshakes.ts";
import { createReadingTurns, type Reading } from "./reading-turns.ts";
import { TotalUsage } from "./total-usage.ts";

/** When memory is short, the share of the limit left to connections on which no call has run. */
const untriedShare = 1 / 4;

/** The most connections to close for keeping much in one turn of the event loop. */
const closedAtOnce = 64;

/** See {@link createConnections}. */
export type Connections = ReturnType<typeof createConnections>;

/**
 * Creates the set of the connections of a server, on all of its ports. When it is full, a new one
 * replaces the one that went longest without a running call or a watch; it is refused if all others
 * have one. When memory is short, connections on which no call has run make room, and those that keep
 * much though no call runs on them are closed.
 *
 * @param max how many there may be
 * @param memoryBytes returns the memory of the process
 */
export function createConnections(max: number, memoryBytes = createMemoryGauge()) {
  const all = new Map<string, Entry>();
  const shortAbove = shortBytes(max);
  const isMemoryShort = () => memoryBytes() > shortAbove;
  const handshakes = createHandshakes();
  const turns = createReadingTurns(handshakes.skipTurn);
  const total = new TotalUsage({ isMemoryShort, onFlood: pauseReading, onGrowth: relieve });
  let isRelieving = false;

  function pauseReading(): void {
    turns.yield(all.values());
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
    let left = closedAtOnce;
    while (left > 0 && closeIdlest("isExpendable")) left -= 1;
    isRelieving = left === 0 && isMemoryShort();
    if (isRelieving) setImmediate(closeExpendable);
  }

  function closeIdlest(mark: "isUntried" | "isReplaceable" | "isExpendable"): boolean {
    let idlest: [string, Entry] | undefined;
    let since = Number.POSITIVE_INFINITY;
    for (const each of all) {
      const [, { usage }] = each;
      if (usage.usedAt >= since || !usage[mark]) continue;
      idlest = each;
      since = usage.usedAt;
    }
    if (idlest === undefined) return false;
    const [key, { source, socket }] = idlest;
    (source ?? socket).destroy();
    // Its close event comes some turns later, when many more may have come.
    return all.delete(key);
  }

  return {
    /**
     * Registers a new connection.
     *
     * @param isEncrypted whether it begins with a TLS handshake
     */
    add(socket: Socket, isEncrypted: boolean): void {
      if (isMemoryShort() && countUntried() > max * untriedShare) closeIdlest("isUntried");
      if (all.size >= max && !closeIdlest("isReplaceable")) {
        socket.destroy();
        return;
      }
      const key = keyOf(socket);
      const usage = new ConnectionUsage(total);
      const entry: Entry = { socket, usage, source: undefined, isHttp2: false };
      all.set(key, entry);
      if (isEncrypted) handshakes.begin(socket);
      socket.once("close", () => {
        usage.close();
        if (all.get(key) === entry) all.delete(key);
      });
    },
    /**
     * Begins to read requests, on TLS from the socket that encrypts the connection, and returns its
     * usage; undefined if it was closed meanwhile.
     */
    begin(socket: Socket, isHttp2: boolean): ConnectionUsage | undefined {
      const entry = all.get(keyOf(socket));
      if (!entry) return undefined;
      entry.source = socket;
      entry.isHttp2 = isHttp2;
      turns.add(entry);
      if (socket !== entry.socket) handshakes.end(entry.socket, socket as TLSSocket);
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
