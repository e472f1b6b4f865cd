import type { Socket } from "node:net";

/** How a connection is used. */
export interface Usage {
  /** How many exchanges are open on it. */
  open: number;
  /** When the last of them closed, or else when it came, by performance.now(). */
  idleSince: number;
  /** How many calls that were admitted, and watches, are open on it. */
  inUse: number;
  /** When the last of them ended, or else when it came, by performance.now(). */
  usedAt: number;
}

/** The connections of a server, on all of its ports. */
export interface Connections {
  /** Takes one in that has just come. */
  add(socket: Socket): void;
  /** How one is used, which may be encrypted by now. */
  usageOf(socket: Socket): Usage;
}

/**
 * Makes the set of the connections of a server. When it is full and one more comes, that is closed
 * which went longest without an admitted call or a watch: the new one, if all others have some.
 *
 * @param max how many there may be
 */
export function createConnections(max: number): Connections {
  const all = new Map<string, { socket: Socket; usage: Usage }>();

  function findIdlest(): Socket | undefined {
    let idlest: Socket | undefined;
    let since = Number.POSITIVE_INFINITY;
    for (const { socket, usage } of all.values()) {
      if (usage.inUse > 0 || usage.usedAt >= since) continue;
      idlest = socket;
      since = usage.usedAt;
    }
    return idlest;
  }

  return {
    add(socket) {
      if (all.size >= max) (findIdlest() ?? socket).destroy();
      const key = keyOf(socket);
      const now = performance.now();
      const entry = { socket, usage: { open: 0, idleSince: now, inUse: 0, usedAt: now } };
      all.set(key, entry);
      socket.once("close", () => {
        if (all.get(key) === entry) all.delete(key);
      });
    },
    usageOf(socket) {
      const known = all.get(keyOf(socket))?.usage;
      return known ?? { open: 0, idleSince: 0, inUse: 0, usedAt: 0 };
    },
  };
}

/** The same for a socket and the one that encrypts it. */
function keyOf({ remoteAddress, remotePort, localPort }: Socket): string {
  return `${remoteAddress} ${remotePort} ${localPort}`;
}
