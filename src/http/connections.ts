import type { Socket } from "node:net";
import { ConnectionUsage, TotalUsage } from "./connection-usage.ts";

/** See {@link createConnections}. */
export type Connections = ReturnType<typeof createConnections>;

/**
 * Makes the set of the connections of a server, on all of its ports. When it is full and one more
 * comes, the one is closed that went longest without an admitted call or a watch: the new one, if
 * all others have some.
 *
 * @param max how many there may be
 */
export function createConnections(max: number) {
  const all = new Map<string, Entry>();
  const total = new TotalUsage(yieldReading);

  /**
   * Leaves the rest of what clients have sent to the next turn of the event loop: in one turn, much
   * could be read from many connections before anything of it can end.
   */
  function yieldReading(): void {
    const stopped = Array.from(all.values(), ({ reader }) => handleOf(reader)).filter(
      (handle) => handle?.reading,
    );
    for (const handle of stopped) handle?.readStop();
    setImmediate(() => {
      for (const handle of stopped) if (handle?.reading) handle.readStart();
    });
  }

  function closeIdlest(): boolean {
    let idlest: string | undefined;
    let since = Number.POSITIVE_INFINITY;
    for (const [key, { usage }] of all) {
      // Anybody may watch: of those who never were admitted, that keeps no connection.
      const isInUse = usage.inUse > (usage.wasAdmitted ? 0 : usage.watches);
      if (isInUse || usage.usedAt >= since) continue;
      idlest = key;
      since = usage.usedAt;
    }
    if (idlest === undefined) return false;
    all.get(idlest)?.socket.destroy();
    // It tells of its end some turns later, when many more may have come.
    return all.delete(idlest);
  }

  return {
    /** Registers a new one. */
    add(socket: Socket): void {
      if (all.size >= max && !closeIdlest()) {
        socket.destroy();
        return;
      }
      const key = keyOf(socket);
      const usage = new ConnectionUsage(total);
      const entry: Entry = { socket, usage, reader: undefined };
      all.set(key, entry);
      socket.once("close", () => {
        usage.close();
        if (all.get(key) === entry) all.delete(key);
      });
    },
    /** How one is used that is to be read from now on, and may be encrypted. */
    usageOf(socket: Socket): ConnectionUsage {
      const entry = all.get(keyOf(socket));
      if (entry) entry.reader = socket;
      return entry?.usage ?? new ConnectionUsage(total);
    },
  };
}

interface Entry {
  readonly socket: Socket;
  readonly usage: ConnectionUsage;
  /** The socket, or the one that encrypts it, once requests are read from it. */
  reader: Socket | undefined;
}

/** What reads from a socket; there is no public way to stop it that HTTP/2 does not undo. */
function handleOf(socket: Socket | undefined) {
  return (socket as { _handle?: Handle } | undefined)?._handle;
}

interface Handle {
  /** Whether Node.js wants to read. */
  readonly reading: boolean;
  readStop(): number;
  readStart(): number;
}

/** The same for a socket and the one that encrypts it. */
function keyOf({ remoteAddress, remotePort, localAddress, localPort }: Socket): string {
  return `${remoteAddress} ${remotePort} ${localAddress} ${localPort}`;
}
