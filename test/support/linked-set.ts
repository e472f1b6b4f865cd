import { once } from "node:events";
import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import { type Document, MongoClient } from "mongodb";
import { MongoMemoryServer } from "mongodb-memory-server-core";
import { onTestFinished } from "vitest";
import { waitFor } from "./service.ts";

/** What a {@link startLinkedSet set} is like. */
export interface LinkedSetOptions {
  /** The time that bytes take from one member to another, in milliseconds. */
  delayMs: number;
  /** The time without a primary after which the others elect one, in milliseconds. */
  electionTimeoutMs: number;
}

/** A replica set of three members, two of which can be elected; all links can be cut. */
export interface LinkedSet {
  /** The URL of a database. */
  url(database: string): string;
  /** The number of the member that is the primary, as the others see it. */
  primary(): Promise<number>;
  /** Takes a member away as if its machine had lost its power, and what it was sending. */
  kill(member: number): void;
  /** Stops a member's process, so that it neither replies nor notices. */
  pause(member: number): void;
  /** Cuts a member off from the others; its clients still reach it. */
  isolate(member: number): void;
  /** Undoes all that was done to the members, and waits until each takes part again. */
  heal(): Promise<void>;
}

interface Link {
  from: number;
  to: number;
  cut(): void;
}

const memberCount = 3;

/**
 * Starts a set whose members know each other by the ports of proxies. A proxy sees by the
 * process at the other end whether a connection comes from a member; those of clients are
 * neither delayed nor cut. It needs /proc, so Linux.
 */
export async function startLinkedSet(options: LinkedSetOptions): Promise<LinkedSet> {
  const { delayMs, electionTimeoutMs } = options;
  const links = new Set<Link>();
  let isolated: number | undefined;
  // The first sync would take long with it.
  let linkDelayMs = 0;

  const instance = { replSet: "linked", storageEngine: "wiredTiger" } as const;
  const servers = await Promise.all(
    Array.from({ length: memberCount }, () => MongoMemoryServer.create({ instance })),
  );
  onTestFinished(async () => {
    await heal();
    await Promise.all(servers.map((server) => server.stop()));
  }, 60_000);
  const ports = await Promise.all(servers.map((_, to) => startMemberProxy(to)));
  const hosts = ports.map((port) => `127.0.0.1:${port}`);
  await initiate();

  function processOf(member: number) {
    return servers[member]?.instanceInfo?.instance.mongodProcess;
  }

  function isCut(from: number, to: number): boolean {
    return isolated !== undefined && (from === isolated || to === isolated);
  }

  async function startMemberProxy(to: number): Promise<number> {
    const proxy = createServer((socket) => {
      const pids = servers.map((_, member) => processOf(member)?.pid);
      const pid = peerProcessOf(socket, pids);
      const from = pid === undefined ? to : pids.indexOf(pid);
      const isLink = from !== to;
      if (isLink && isCut(from, to)) {
        socket.destroy();
        return;
      }
      const upstream = connect(servers[to]?.instanceInfo?.port ?? 0, "127.0.0.1");
      const link = { from, to, cut: () => [socket, upstream].map((each) => each.destroy()) };
      if (isLink) links.add(link);
      for (const [one, other] of [
        [socket, upstream],
        [upstream, socket],
      ] as const) {
        one.setNoDelay();
        one.on("error", () => {});
        one.on("data", (chunk) => {
          if (!isLink) other.write(chunk);
          else setTimeout(() => other.writable && other.write(chunk), linkDelayMs);
        });
        one.on("close", () => {
          links.delete(link);
          setTimeout(() => other.destroy(), isLink ? linkDelayMs : 0);
        });
      }
    });
    proxy.listen(0, "127.0.0.1");
    await once(proxy, "listening");
    onTestFinished(() => void proxy.close());
    return (proxy.address() as AddressInfo).port;
  }

  async function initiate(): Promise<void> {
    const port = servers[0]?.instanceInfo?.port;
    const client = await MongoClient.connect(`mongodb://127.0.0.1:${port}/?directConnection=true`);
    // Two that could be elected at once would split the votes, again and again over slow links.
    const members = hosts.map((host, _id) => ({ _id, host, priority: _id === 2 ? 0 : 1 }));
    const settings = {
      electionTimeoutMillis: electionTimeoutMs,
      heartbeatIntervalMillis: 500,
      heartbeatTimeoutSecs: 1,
      catchUpTimeoutMillis: 1_000,
    };
    const admin = client.db("admin");
    await admin.command({ replSetInitiate: { _id: "linked", members, settings } });
    await client.close();
    await Promise.all(servers.map(takesPart));
    linkDelayMs = delayMs;
  }

  /** Waits until a member has caught up, so that it could be elected or vote. */
  async function takesPart(server: MongoMemoryServer): Promise<void> {
    const direct = `mongodb://127.0.0.1:${server.instanceInfo?.port}/?directConnection=true`;
    const client = await MongoClient.connect(direct);
    await waitFor(async () => {
      // A rollback closes connections.
      const hello = client.db("admin").command({ hello: 1 });
      const { isWritablePrimary, secondary } = await hello.catch(() => ({}) as Document);
      return isWritablePrimary || secondary;
    });
    await client.close();
  }

  /** Each try has a client of its own: one that fails to connect stays so. */
  async function primary(): Promise<number> {
    return waitFor(async () => {
      const client = new MongoClient(url("admin"), { serverSelectionTimeoutMS: 2_000 });
      try {
        const hello = await client.db().command({ hello: 1 });
        return hello.isWritablePrimary ? hosts.indexOf(hello.me) : undefined;
      } catch {
        return undefined;
      } finally {
        await client.close();
      }
    });
  }

  function url(database: string): string {
    return `mongodb://${hosts.join(",")}/${database}?replicaSet=linked`;
  }

  async function heal(): Promise<void> {
    isolated = undefined;
    await Promise.all(
      servers.map(async (server, member) => {
        const process = processOf(member);
        if (process && process.exitCode === null && process.signalCode === null) {
          process.kill("SIGCONT");
        } else {
          await server.stop({ doCleanup: false }).catch(() => {});
          await server.start(true);
        }
        await takesPart(server);
      }),
    );
  }

  function isolate(member: number): void {
    isolated = member;
    for (const link of links) if (isCut(link.from, link.to)) link.cut();
  }

  return {
    url,
    primary,
    kill(member) {
      isolate(member);
      processOf(member)?.kill("SIGKILL");
    },
    pause: (member) => void processOf(member)?.kill("SIGSTOP"),
    isolate,
    heal,
  };
}

/** Which of the processes is at the other end of a connection within this machine (proc(5)). */
function peerProcessOf(socket: Socket, pids: (number | undefined)[]): number | undefined {
  const toHex = (port = 0) => port.toString(16).toUpperCase().padStart(4, "0");
  const ends = `:${toHex(socket.remotePort)} 0100007F:${toHex(socket.localPort)} `;
  const line = readFileSync("/proc/net/tcp", "utf8")
    .split("\n")
    .find((each) => each.includes(ends));
  const inode = line?.trim().split(/\s+/)[9];
  return pids.find((pid) => pid !== undefined && holds(pid, `socket:[${inode}]`));
}

function holds(pid: number, target: string): boolean {
  const folder = `/proc/${pid}/fd`;
  try {
    return readdirSync(folder).some((fd) => readlinkSync(`${folder}/${fd}`) === target);
  } catch {
    // The process ended, or a descriptor was closed meanwhile; a link would be made anew.
    return false;
  }
}
