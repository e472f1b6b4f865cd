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
   * Leaves the rest of what clients have sent to the next turns of the event loop: in one turn, much
   * could be read from many connections before anything of it can end. Those from which nothing was
   * read come first.
   */
  function yieldReading(): void {
    const [idle, busy]: [Handle[], Handle[]] = [[], []];
    for (const { reader, usage } of all.values()) {
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
    /** The usage of one, given what requests are read from: on TLS, the socket that encrypts it. */
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

/** The same for a socket and the one that encrypts it. */
function keyOf({ remoteAddress, remotePort, localAddress, localPort }: Socket): string {
  return `${remoteAddress} ${remotePort} ${localAddress} ${localPort}`;
}
