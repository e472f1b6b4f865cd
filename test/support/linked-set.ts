import { once } from "node:events";
import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { type Document, MongoClient } from "mongodb";
import { MongoMemoryServer } from "mongodb-memory-server-core";
import { onTestFinished } from "vitest";
import { launchTimeout } from "./mongodb.ts";
import { waitFor } from "./service.ts";

/** What a {@link startLinkedSet set} is like. */
interface LinkedSetOptions {
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
  /** Has the primary step down, which then is not elected for some seconds. */
  stepDown(member: number): Promise<void>;
  /** Lets something happen between the clients and all members, until {@link LinkedSet.heal}. */
  disturbClients(disturbance: Disturbance): void;
  /** How each member sees the set, for those who read about a failure. */
  describe(): Promise<string>;
  /** Undoes all that was done to the members and to clients, and waits until each takes part again. */
  heal(): Promise<void>;
}

/** A direction between a client and a member. */
export type Direction = "requests" | "replies";

/** What can happen between clients and members. */
export type Disturbance =
  /** All bytes take longer, by milliseconds. */
  | { kind: "delay"; ms: number }
  /** Bytes arrive only at the end, also if their sender has gone by then. */
  | { kind: "hold"; direction: Direction }
  /** Bytes vanish, and in the end their connections break. */
  | { kind: "drop"; direction: Direction }
  /** Replies break off in the middle, and their connections with them. */
  | { kind: "cut" }
  /** One direction of each connection that is there is closed. */
  | { kind: "half-close"; direction: Direction };

interface Link {
  from: number;
  to: number;
  cut(): void;
}

interface ClientLink extends Link {
  socket: Socket;
  upstream: Socket;
  hasLostBytes: boolean;
}

const memberCount = 3;

/**
 * Starts a set whose members know each other by the ports of proxies. A proxy sees by the
 * process at the other end whether a connection comes from a member or a client. It needs /proc,
 * so Linux.
 */
export async function startLinkedSet(options: LinkedSetOptions): Promise<LinkedSet> {
  const { delayMs, electionTimeoutMs } = options;
  const links = new Set<Link>();
  const clientLinks = new Set<ClientLink>();
  let disturbance: Disturbance | undefined;
  let calm = Promise.withResolvers<void>();
  // A process that was killed may not have ended yet.
  const killed = new Set<number>();
  let isolated: number | undefined;
  let restarted: Promise<unknown> = Promise.resolve();
  // The first sync would take long with it.
  let linkDelayMs = 0;

  const instance = { replSet: "linked", storageEngine: "wiredTiger", launchTimeout } as const;
  const servers = await Promise.all(
    Array.from({ length: memberCount }, () => MongoMemoryServer.create({ instance })),
  );
  onTestFinished(async () => {
    await undo();
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
    const proxy = createServer({ allowHalfOpen: true }, async (socket) => {
      socket.on("error", () => {});
      // Until it has started, a member's process is not known, and would be taken for a client.
      await restarted;
      const pids = servers.map((_, member) => processOf(member)?.pid);
      const pid = peerProcessOf(socket, pids);
      const from = pid === undefined ? to : pids.indexOf(pid);
      const isLink = from !== to;
      if (isLink && isCut(from, to)) {
        socket.destroy();
        return;
      }
      const port = servers[to]?.instanceInfo?.port ?? 0;
      const upstream = connect({ port, host: "127.0.0.1", allowHalfOpen: true });
      const link = { from, to, cut: () => [socket, upstream].map((each) => each.destroy()) };
      if (pid === undefined) {
        joinClient({ ...link, socket, upstream, hasLostBytes: false });
        return;
      }
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
        one.on("end", () => one.destroy());
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

  function joinClient(link: ClientLink): void {
    clientLinks.add(link);
    forward(link, "requests");
    forward(link, "replies");
  }

  function forward(link: ClientLink, direction: Direction): void {
    const { socket, upstream } = link;
    const [from, to] = direction === "requests" ? [socket, upstream] : [upstream, socket];
    let passed = Promise.resolve();
    from.setNoDelay();
    from.on("error", () => {});
    from.on("data", (chunk: Buffer) => {
      passed = passed.then(() => pass(chunk));
    });
    const end = () => {
      passed = passed.then(() => void to.end());
    };
    from.on("end", end);
    from.on("close", () => {
      clientLinks.delete(link);
      end();
    });

    async function pass(chunk: Buffer): Promise<void> {
      const now = disturbance;
      if (now?.kind === "delay") await delay(now.ms);
      if (now?.kind === "hold" && now.direction === direction) await calm.promise;
      if (now?.kind === "drop" && now.direction === direction) {
        link.hasLostBytes = true;
        return;
      }
      const isCut = now?.kind === "cut" && direction === "replies";
      if (to.writable) to.write(isCut ? chunk.subarray(0, chunk.length / 2) : chunk);
      if (isCut) [socket, upstream].map((each) => each.end());
    }
  }

  function disturbClients(wanted: Disturbance): void {
    disturbance = wanted;
    if (wanted.kind !== "half-close") return;
    for (const { socket, upstream } of clientLinks) {
      (wanted.direction === "requests" ? upstream : socket).end();
    }
  }

  function calmClients(): void {
    disturbance = undefined;
    calm.resolve();
    calm = Promise.withResolvers();
    for (const link of clientLinks) if (link.hasLostBytes) link.cut();
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
    await takePart();
    linkDelayMs = delayMs;
  }

  /**
   * Waits until each member has what the primary has, so that it could be elected, or vote. One
   * that still begins to catch up could do so for a minute from a member that is paused.
   */
  async function takePart(): Promise<void> {
    const { opTime } = (await primaryHello()).lastWrite;
    await Promise.all(
      servers.map(async (server) => {
        const direct = `mongodb://127.0.0.1:${server.instanceInfo?.port}/?directConnection=true`;
        const client = await MongoClient.connect(direct);
        await waitFor(async () => {
          // A rollback closes connections.
          const hello = client.db("admin").command({ hello: 1 });
          const { isWritablePrimary, secondary, lastWrite } = await hello.catch(
            () => ({}) as Document,
          );
          if (!isWritablePrimary && !secondary) return false;
          const { t, ts } = lastWrite.opTime;
          return t >= opTime.t && ts.greaterThanOrEqual(opTime.ts);
        });
        await client.close();
      }),
    );
  }

  async function primary(): Promise<number> {
    return hosts.indexOf((await primaryHello()).me);
  }

  /** Each try has a client of its own: one that fails to connect stays so. */
  async function primaryHello(): Promise<Document> {
    return waitFor(async () => {
      const client = new MongoClient(url("admin"), { serverSelectionTimeoutMS: 2_000 });
      try {
        const hello = await client.db().command({ hello: 1 });
        return hello.isWritablePrimary && hello;
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
    await undo();
    await takePart();
  }

  async function undo(): Promise<void> {
    isolated = undefined;
    calmClients();
    restarted = Promise.all(servers.map(revive));
    await restarted;
  }

  async function revive(server: MongoMemoryServer, member: number): Promise<void> {
    const process = processOf(member);
    const isAlive = process?.exitCode === null && process.signalCode === null;
    if (isAlive && !killed.delete(member)) {
      process.kill("SIGCONT");
    } else {
      killed.delete(member);
      await server.stop({ doCleanup: false }).catch(() => {});
      await server.start(true);
    }
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
      killed.add(member);
      processOf(member)?.kill("SIGKILL");
    },
    pause: (member) => void processOf(member)?.kill("SIGSTOP"),
    isolate,
    async stepDown(member) {
      const direct = `mongodb://127.0.0.1:${servers[member]?.instanceInfo?.port}/`;
      const client = await MongoClient.connect(`${direct}?directConnection=true`);
      // Within the time that secondaries may take to catch up over slow links.
      const command = { replSetStepDown: 3, secondaryCatchUpPeriodSecs: 1, force: true };
      await client.db("admin").command(command);
      await client.close();
    },
    disturbClients,
    async describe() {
      const views = servers.map(async (server) => {
        const direct = `mongodb://127.0.0.1:${server.instanceInfo?.port}/?directConnection=true`;
        const client = new MongoClient(direct, { serverSelectionTimeoutMS: 2_000 });
        const status = await client.db("admin").command({ replSetGetStatus: 1 });
        await client.close();
        return `term ${status.term}: ${status.members.map(
          (each: Document) => `${each.stateStr} ${each.optime?.ts} ${each.lastHeartbeatMessage}`,
        )}`;
      });
      const told = await Promise.allSettled(views);
      return told.map((each) => String("value" in each ? each.value : each.reason)).join("\n");
    },
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
  return unlessGone(() => readdirSync(folder), []).some(
    (fd) => unlessGone(() => readlinkSync(`${folder}/${fd}`), "") === target,
  );
}

/** Reads about a process or a descriptor, either of which may be gone by now. */
function unlessGone<T>(read: () => T, otherwise: T): T {
  try {
    return read();
  } catch {
    return otherwise;
  }
}
