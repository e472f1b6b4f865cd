import { once } from "node:events";
import { connect, createServer, type Socket } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { type Document, MongoClient } from "mongodb";
import { MongoMemoryServer } from "mongodb-memory-server-core";
import { onTestFinished } from "vitest";
import { launchTimeout, revive } from "../../support/mongodb.ts";
import { hasEnded, waitFor } from "../../support/service.ts";
import { listen } from "../../support/tcp.ts";

/**
 * A replica set of three members, two of which can be elected; all links can be cut. No failpoint of
 * MongoDB does that: here a primary goes on that its majority has left, and replies are held back.
 */
export type LinkedSet = Awaited<ReturnType<typeof startLinkedSet>>;

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

/** Starts a set whose members know each other by the ports of proxies. */
export async function startLinkedSet() {
  const links = new Set<Link>();
  let disturbance: "held" | "cut" | undefined;
  let calm = Promise.withResolvers<void>();
  let isolated: number | undefined;
  // Without it at first: the first sync would take long.
  let memberDelayMs = 0;

  const instance = { replSet: "linked", storageEngine: "wiredTiger", launchTimeout } as const;
  const servers = await Promise.all([0, 1, 2].map(() => MongoMemoryServer.create({ instance })));
  onTestFinished(async () => {
    await undo();
    await Promise.all(servers.map((server) => server.stop()));
  });
  const hosts = await Promise.all(servers.map((_, to) => startProxy(to)));
  await initiate();

  async function startProxy(to: number): Promise<string> {
    const proxy = createServer({ allowHalfOpen: true }, (socket) => {
      const port = servers[to]?.instanceInfo?.port ?? 0;
      const upstream = connect({ port, host: "127.0.0.1", allowHalfOpen: true });
      const link: Link = { to, socket, upstream };
      links.add(link);
      forward(link, socket, upstream);
      forward(link, upstream, socket);
    });
    return `127.0.0.1:${await listen(proxy)}`;
  }

  function forward(link: Link, from: Socket, to: Socket): void {
    let passed = Promise.resolve();
    const then = (step: () => Promise<void> | void) => {
      passed = passed.then(step);
    };
    from.setNoDelay();
    from.on("error", () => {});
    from.on("data", (chunk: Buffer) => {
      const arrived = performance.now();
      then(() => pass(link, to, chunk, arrived));
    });
    from.on("end", () => then(() => void to.end()));
    from.on("close", () => {
      links.delete(link);
      then(() => void to.end());
    });
  }

  async function pass(link: Link, to: Socket, chunk: Buffer, arrived: number): Promise<void> {
    link.isClient ??= chunk.includes("nodejs");
    const isReply = to === link.socket;
    const now = link.isClient && isReply ? disturbance : undefined;
    if (!link.isClient && isCutOff(link, chunk)) cut(link);
    else if (!link.isClient) await delay(Math.max(0, arrived + memberDelayMs - performance.now()));
    if (now === "held") await calm.promise;
    if (now === "cut") {
      to.end(chunk.subarray(0, chunk.length / 2));
      link.upstream.end();
    } else if (to.writable) to.write(chunk);
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
      electionTimeoutMillis: 1_500,
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
    const hasCaughtUp = async (server: MongoMemoryServer) => {
      const { isWritablePrimary, secondary, lastWrite } = await helloOf(directUrl(server));
      if (!isWritablePrimary && !secondary) return false;
      const { t, ts } = lastWrite.opTime;
      return t >= opTime.t && ts.greaterThanOrEqual(opTime.ts);
    };
    await Promise.all(servers.map((server) => waitFor(() => hasCaughtUp(server))));
  }

  async function primaryHello(): Promise<Document> {
    return waitFor(async () => {
      const hello = await helloOf(url("admin"));
      return hello.isWritablePrimary && hello;
    });
  }

  /** The URL of a database. */
  function url(database: string): string {
    return `mongodb://${hosts.join(",")}/${database}?replicaSet=linked`;
  }

  function signal(member: number, name: NodeJS.Signals): void {
    servers[member]?.instanceInfo?.instance.mongodProcess?.kill(name);
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
    for (const member of servers.keys()) signal(member, "SIGCONT");
    await revive(servers);
  }

  return {
    url,
    isolate,
    /** The number of the member that is the primary, as the others see it. */
    primary: async () => hosts.indexOf((await primaryHello()).me),
    /** Takes a member away as if its machine had lost its power, and what it was sending. */
    async kill(member: number): Promise<void> {
      isolate(member);
      const running = servers[member]?.instanceInfo?.instance.mongodProcess;
      signal(member, "SIGKILL");
      if (running && !hasEnded(running)) await once(running, "exit");
    },
    /** Stops a member's process, so that it neither replies nor notices. */
    pause: (member: number) => signal(member, "SIGSTOP"),
    /** Has the primary step down, which then is not elected for some seconds. */
    async stepDown(): Promise<void> {
      const client = await MongoClient.connect(url("admin"));
      // Within the time that secondaries may take to catch up over slow links.
      const command = { replSetStepDown: 3, secondaryCatchUpPeriodSecs: 1, force: true };
      await client.db().command(command);
      await client.close();
    },
    /**
     * Has replies to clients held back, to arrive once the set is healed, or break off in the
     * middle, and their connections with them.
     */
    disturbReplies(how: "held" | "cut"): void {
      disturbance = how;
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

/** A server's hello, empty if it fails. A client that fails to connect stays so, hence a new one. */
async function helloOf(url: string): Promise<Document> {
  const client = new MongoClient(url, { serverSelectionTimeoutMS: 2_000 });
  const hello = client.db("admin").command({ hello: 1 });
  return hello.catch(() => ({})).finally(() => client.close());
}
