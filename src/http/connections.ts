import type { Socket } from "node:net";

/** Replies that one connection may leave unsent before it is served no further, in bytes. */
const maxUnsentBytes = 4 * 1024 * 1024;

/** What all connections may keep before calls on those that have their share are refused. */
const maxTotalBytes = 64 * 1024 * 1024;

/** What each connection may keep, whatever the others do. */
const shareBytes = 32 * 1024;

/** What one connection may keep of calls that were refused. */
const maxRefusedBytes = 64 * 1024;

/** The time that a client has to read these, in milliseconds: many can be refused at once. */
const refusedTimeoutMs = 5_000;

/** The same when all connections together keep too much. */
const crowdedTimeoutMs = 100;

/** What all connections keep in memory until something was sent, in bytes. */
interface Total {
  kept: number;
}

/** How a connection is used, and what it keeps in memory until its client reads. */
export class Usage {
  /** How many exchanges are open on it. */
  open = 0;
  /** When the last of them closed, or else when it came, by performance.now(). */
  idleSince = performance.now();
  /** How many calls that were admitted, and watches, are open on it. */
  inUse = 0;
  /** How many of them are watches, which end with the connection. */
  watches = 0;
  /** Whether any call was admitted on it. */
  wasAdmitted = false;
  /** When the last of them ended, or else when it came, by performance.now(). */
  usedAt = this.idleSince;
  readonly #total: Total;
  /** What waits until it has sent more, and how much room each needs, in bytes. */
  readonly #waiting = new Map<() => void, number>();
  /** Bytes that it keeps in memory until something was sent. */
  #kept = 0;
  /** Bytes of replies, and of those to come that will be large. */
  #unsent = 0;
  #refused = 0;
  #refusedTimer: NodeJS.Timeout | undefined;

  constructor(total: Total) {
    this.#total = total;
  }

  /** Whether one more call may be served on it. */
  get hasRoom(): boolean {
    return this.#unsent <= maxUnsentBytes;
  }

  /** Whether calls on it are refused, since it keeps too much beside the others. */
  get isCrowded(): boolean {
    return this.#total.kept > maxTotalBytes && this.#kept > shareBytes;
  }

  /** Whether a reply of so many bytes may wait to be sent, whatever waits beside it. */
  canTake(bytes: number): boolean {
    return bytes <= shareBytes || this.#total.kept + bytes <= maxTotalBytes;
  }

  /** Counts bytes that are kept until something was sent; fewer, if negative. */
  keep(bytes: number): void {
    this.#kept += bytes;
    this.#total.kept += bytes;
  }

  /**
   * Calls back when a reply of so many bytes may wait to be sent, and counts it; at once if it may
   * now.
   *
   * @returns gives up to wait
   */
  reserve(bytes: number, onRoom: () => void): () => void {
    const go = () => {
      this.#waiting.delete(go);
      this.#unsent += bytes;
      onRoom();
    };
    this.#waiting.set(go, Math.min(bytes, maxUnsentBytes));
    this.#goOn();
    return () => void this.#waiting.delete(go);
  }

  /** Counts a reply no more, or part of it; one more, if negative. */
  release(bytes: number): void {
    this.#unsent -= bytes;
    // A reply that takes room makes none: what waits would go on within what goes on.
    if (bytes > 0) this.#goOn();
  }

  #goOn(): void {
    for (const [go, needed] of this.#waiting) {
      if (this.#unsent + needed > maxUnsentBytes) return;
      go();
    }
  }

  /** Counts bytes of replies to refused calls, which close the connection if too many wait. */
  addRefused(bytes: number, socket: Socket): void {
    this.#refused += bytes;
    if (this.#refused <= maxRefusedBytes) {
      clearTimeout(this.#refusedTimer);
      this.#refusedTimer = undefined;
    } else {
      const ms = this.#total.kept > maxTotalBytes ? crowdedTimeoutMs : refusedTimeoutMs;
      this.#refusedTimer ??= setTimeout(() => socket.destroy(), ms).unref();
    }
  }
}

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
  const all = new Map<string, { socket: Socket; usage: Usage }>();
  const total: Total = { kept: 0 };

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
      const entry = { socket, usage: new Usage(total) };
      all.set(key, entry);
      socket.once("close", () => {
        if (all.get(key) === entry) all.delete(key);
      });
    },
    /** How one is used, which may be encrypted by now. */
    usageOf: (socket: Socket): Usage => all.get(keyOf(socket))?.usage ?? new Usage(total),
  };
}

/** The same for a socket and the one that encrypts it. */
function keyOf({ remoteAddress, remotePort, localAddress, localPort }: Socket): string {
  return `${remoteAddress} ${remotePort} ${localAddress} ${localPort}`;
}
