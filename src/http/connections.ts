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
  const all = new Map<string, { socket: Socket; usage: ConnectionUsage }>();
  const total = new TotalUsage();

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
      const entry = { socket, usage };
      all.set(key, entry);
      socket.once("close", () => {
        usage.close();
        if (all.get(key) === entry) all.delete(key);
      });
    },
    /** How one is used, which may be encrypted by now. */
    usageOf: (socket: Socket): ConnectionUsage =>
      all.get(keyOf(socket))?.usage ?? new ConnectionUsage(total),
  };
}

/** The same for a socket and the one that encrypts it. */
function keyOf({ remoteAddress, remotePort, localAddress, localPort }: Socket): string {
  return `${remoteAddress} ${remotePort} ${localAddress} ${localPort}`;
}
