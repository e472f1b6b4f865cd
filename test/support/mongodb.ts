import { MongoClient, type MongoClientOptions } from "mongodb";
import { MongoMemoryReplSet, MongoMemoryServer } from "mongodb-memory-server-core";
import { v4 } from "uuid";
import { afterAll, beforeAll, describe, inject, onTestFinished } from "vitest";
import { hasEnded, waitFor } from "./service.ts";
import { lacking } from "./tools.ts";

const electionTimeoutMs = 2_000;

/** How long a server may take to start, in milliseconds: less than a test that starts it. */
export const launchTimeout = inject("testMs") / 2;

/** A member of a set as a process. */
interface Member {
  readonly port: number;
  signal(signal: NodeJS.Signals): void;
}

/** A MongoDB that the tests of one file share. */
interface TestMongo {
  /** The URL of a database of its own. */
  url(): string;
  members(): Member[];
  /** Starts the members again that have died, on their ports and with their data. */
  revive(): Promise<void>;
}

/** The deployments to test against; sets are named by the number of their members. */
type MongoKind = "standalone" | "set of one" | "set of three";

/** The options of a test that starts a MongoDB of its own: it is skipped where there is none. */
export const needsMongo = () => (inject("hasMongo") ? {} : lacking("MongoDB"));

/** Runs tests against a real MongoDB; they are skipped without it. */
export function describeWithMongo(
  name: string,
  kind: MongoKind,
  tests: (mongo: TestMongo) => void,
): void {
  const start = () =>
    kind === "standalone" ? startStandalone() : startReplicaSet(kind === "set of one" ? 1 : 3);
  describe(name, needsMongo(), () => {
    let running: Awaited<ReturnType<typeof start>>;
    beforeAll(async () => {
      running = await start();
    });
    afterAll(async () => {
      for (const { signal } of running.members()) signal("SIGCONT");
      await running.stop();
    });
    tests({
      url: () => running.url(`test-${v4()}`),
      members: () => running.members(),
      revive: () => running.revive(),
    });
  });
}

/** The members of a set, the primary first. */
export async function findMembers(mongo: TestMongo): Promise<Member[]> {
  const client = await MongoClient.connect(mongo.url());
  const primary = await waitFor(async () => {
    const hello = await client.db("admin").command({ hello: 1 });
    return hello.isWritablePrimary ? Number(hello.me.split(":")[1]) : undefined;
  });
  await client.close();
  const members = mongo.members();
  return members.toSorted((a, b) => Number(b.port === primary) - Number(a.port === primary));
}

/** A client of MongoDB itself, until the end of the test. */
export async function connectTo(url: string, options?: MongoClientOptions): Promise<MongoClient> {
  const client = await MongoClient.connect(url, options);
  onTestFinished(() => client.close());
  return client;
}

/** Starts a server of the running test's own. */
export async function startServer(instance: object = {}, auth?: object) {
  const server = await createServer(instance, auth);
  onTestFinished(async () => void (await server.stop()));
  return server;
}

/** The commands by which a test has a server fail. */
const args = ["--setParameter", "enableTestCommands=1"];

/** Starts a set of one with users, of the running test's own: its root, and the URL of another. */
export async function startWithUsers() {
  const auth = { enable: true, customRootName: "root", customRootPwd: "secret" };
  const set = await MongoMemoryReplSet.create({
    instanceOpts: [{ launchTimeout, args }],
    replSet: { count: 1, storageEngine: "wiredTiger", auth },
  });
  onTestFinished(async () => void (await set.stop()));
  const login = { auth: { username: "root", password: "secret" } };
  const root = await connectTo(set.getUri("admin"), login);
  const urlOf = (user: string, password = "secret") =>
    set.getUri("investors").replace("//", `//${user}:${password}@`);
  return { root, db: root.db("investors"), urlOf };
}

function createServer(instance: object = {}, auth?: object): Promise<MongoMemoryServer> {
  const all = { storageEngine: "wiredTiger", launchTimeout, args, ...instance } as const;
  return MongoMemoryServer.create({ instance: all, ...auth });
}

async function startStandalone() {
  const server = await createServer();
  return {
    url: (database: string) => server.getUri(database),
    members: () => toMembers([server]),
    revive: () => revive([server]),
    stop: () => server.stop(),
  };
}

async function startReplicaSet(count: number) {
  const set = await MongoMemoryReplSet.create({
    instanceOpts: Array.from({ length: count }, () => ({ launchTimeout, args })),
    replSet: {
      count,
      storageEngine: "wiredTiger",
      configSettings: { electionTimeoutMillis: electionTimeoutMs },
    },
  });
  return {
    url: (database: string) => set.getUri(database),
    members: () => toMembers(set.servers),
    revive: () => revive(set.servers),
    stop: () => set.stop(),
  };
}

function toMembers(servers: MongoMemoryServer[]): Member[] {
  return servers.flatMap(({ instanceInfo }) => {
    const process = instanceInfo?.instance.mongodProcess;
    if (instanceInfo === undefined || process === undefined) return [];
    return [{ port: instanceInfo.port, signal: (signal) => void process.kill(signal) }];
  });
}

/** Starts servers again that have died, on their ports and with their data. */
export async function revive(servers: MongoMemoryServer[]): Promise<void> {
  await Promise.all(
    servers.map(async (server) => {
      const process = server.instanceInfo?.instance.mongodProcess;
      if (process && !hasEnded(process)) return;
      await server.stop({ doCleanup: false }).catch(() => {});
      await server.start(true);
    }),
  );
}
