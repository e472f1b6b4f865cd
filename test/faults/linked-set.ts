import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { type Document, MongoClient } from "mongodb";
import { MongoMemoryServer } from "mongodb-memory-server-core";
import { onTestFinished } from "vitest";
import { launchTimeout } from "../support/mongodb.ts";
import { waitFor } from "../support/service.ts";

/** A replica set of three members, two of which can be elected; all links can be cut. */
export type LinkedSet = Awaited<ReturnType<typeof startLinkedSet>>;

/**
 * What can happen between clients and members, until the set is healed: bytes are held back, and
 * arrive at the end, also if their sender has gone by then; or replies break off in the middle, and
 * their connections with them.
 */
export type Disturbance = "requests are held" | "replies are held" | "replies are cut";

/** A connection to a member, from another or from a client. */
interface Link {
  to: number;
  socket: Socket;
  upstream: Socket;
  /** Unknown until its first bytes, which name the driver. */
  isClient?: boolean;
}

/** How long bytes are on their way from one member to another, in milliseconds. */
const linkDelayMs = 100;
/** The time without a primary after which the others elect one, in milliseconds. */
const electionTimeoutMs = 1_500;

/** Starts a set whose members know each other by the ports of proxies. */
export async function startLinkedSet() {
  const links = new Set<Link>();
  let disturbance: Disturbance | undefined;
  let calm = Promise.withResolvers<void>();
  let isolated: number | undefined;
  // A process that was killed may not have ended yet.
  const killed = new Set<number>();
  // Without it at first: the first sync would take long.
  let memberDelayMs = 0;

  const instance = { replSet: "linked", storageEngine: "wiredTiger", launchTimeout } as const;
  const servers = await Promise.all([
    MongoMemoryServer.create({ instance }),
    MongoMemoryServer.create({ instance }),
    MongoMemoryServer.create({ instance }),
  ]);
  onTestFinished(async () => {
    await undo();
    await Promise.all(servers.map((server) => server.stop()));
  }, 60_000);
  const hosts = await Promise.all(servers.map((_, to) => startProxy(to)));
  await initiate();

  async function startProxy(to: number): Promise<string> {
    const proxy = createServer({ allowHalfOpen: true }, (socket) => {
      const port = servers[to]?.instanceInfo?.port ?? 0;
      const upstream = connect({ port, host: "127.0.0.1", allowHalfOpen: true });
      const link: Link = { to, socket, upstream };
      links.add(link);
      forward(link, "requests");
      forward(link, "replies");
    });
    proxy.listen(0, "127.0.0.1");
    await once(proxy, "listening");
    onTestFinished(() => void proxy.close());
    return `127.0.0.1:${(proxy.address() as AddressInfo).port}`;
  }

  function forward(link: Link, direction: "requests" | "replies"): void {
    const { socket, upstream } = link;
    const [from, to] = direction === "requests" ? [socket, upstream] : [upstream, socket];
    let passed = Promise.resolve();
    const then = (step: () => Promise<void> | void) => {
      passed = passed.then(step);
    };
    from.setNoDelay();
    from.on("error", () => {});
    from.on("data", (chunk: Buffer) => {
      const arrived = performance.now();
      then(() => pass(link, direction, chunk, arrived));
    });
    from.on("end", () => then(() => void to.end()));
    from.on("close", () => {
      links.delete(link);
      then(() => void to.end());
    });
  }

  async function pass(link: Link, direction: string, chunk: Buffer, arrived: number) {
    link.isClient ??= chunk.includes("nodejs");
    const to = direction === "requests" ? link.upstream : link.socket;
    const now = link.isClient ? disturbance : undefined;
    if (!link.isClient && isCutOff(link, chunk)) cut(link);
    else if (!link.isClient) await delay(Math.max(0, arrived + memberDelayMs - performance.now()));
    if (now === `${direction} are held`) await calm.promise;
    if (now === `${direction} are cut`) {
      to.end(chunk.subarray(0, chunk.length / 2));
      link.upstream.end();
      return;
    }
    if (to.writable) to.write(chunk);
  }

  /** A heartbeat names its sender. */
  function isCutOff({ to }: Link, chunk: Buffer): boolean {
    if (isolated === undefined) return false;
    const isFrom = chunk.includes("replSetHeartbeat") && chunk.includes(hosts[isolated] ?? "");
    return to === isolated || isFrom;
  }

  function cut({ socket, upstream }: Link): void {
    socket.destroy();
    upstream.destroy();
  }

  async function initiate(): Promise<void> {
    const client = await MongoClient.connect(directUrl(servers[0] as MongoMemoryServer));
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
    memberDelayMs = linkDelayMs;
  }

  /**
   * Waits until each member has what the primary has, so that it could be elected, or vote. One
   * that still begins to catch up could do so for a minute from a member that is paused.
   */
  async function takePart(): Promise<void> {
    const { opTime } = (await primaryHello()).lastWrite;
    await Promise.all(
      servers.map(async (server) => {
        const client = await MongoClient.connect(directUrl(server));
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

  /** The number of the member that is the primary, as the others see it. */
  async function primary(): Promise<number> {
    return hosts.indexOf((await primaryHello()).me);
  }

  /** The URL of a database. */
  function url(database: string): string {
    return `mongodb://${hosts.join(",")}/${database}?replicaSet=linked`;
  }

  function processOf(member: number) {
    return servers[member]?.instanceInfo?.instance.mongodProcess;
  }

  /** Cuts a member off from the others; its clients still reach it. */
  function isolate(member: number): void {
    isolated = member;
    for (const link of links) if (link.isClient === false && link.to === member) cut(link);
  }

  async function undo(): Promise<void> {
    isolated = undefined;
    disturbance = undefined;
    calm.resolve();
    calm = Promise.withResolvers();
    await Promise.all(
      servers.map(async (server, member) => {
        const running = processOf(member);
        if (!killed.delete(member) && running?.exitCode === null) {
          running.kill("SIGCONT");
          return;
        }
        await server.stop({ doCleanup: false }).catch(() => {});
        await server.start(true);
      }),
    );
  }

  return {
    url,
    primary,
    isolate,
    /** Takes a member away as if its machine had lost its power, and what it was sending. */
    kill(member: number): void {
      isolate(member);
      killed.add(member);
      processOf(member)?.kill("SIGKILL");
    },
    /** Stops a member's process, so that it neither replies nor notices. */
    pause: (member: number) => void processOf(member)?.kill("SIGSTOP"),
    /** Has the primary step down, which then is not elected for some seconds. */
    async stepDown(): Promise<void> {
      const client = await MongoClient.connect(url("admin"));
      // Within the time that secondaries may take to catch up over slow links.
      const command = { replSetStepDown: 3, secondaryCatchUpPeriodSecs: 1, force: true };
      await client.db().command(command);
      await client.close();
    },
    disturbClients(wanted: Disturbance): void {
      disturbance = wanted;
    },
    /** Undoes all of this, and waits until each member takes part again. */
    async heal(): Promise<void> {
      await undo();
      await takePart();
    },
  };
}

function directUrl(server: MongoMemoryServer): string {
  return `mongodb://127.0.0.1:${server.instanceInfo?.port}/?directConnection=true`;
}
