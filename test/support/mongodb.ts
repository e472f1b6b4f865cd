import { connect, createServer as createProxy, type Socket } from "node:net";
import { MongoClient, type MongoClientOptions } from "mongodb";
import { MongoMemoryReplSet, MongoMemoryServer } from "mongodb-memory-server-core";
import { v4 } from "uuid";
import { afterAll, beforeAll, describe, inject, onTestFinished } from "vitest";
import { hasEnded, waitFor } from "./service.ts";
import { listen } from "./tcp.ts";
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

/** The options of a test that starts a MongoDB of its own: it is skipped where there is none. */
export const needsMongo = () =>
  inject("hasMongo")
    ? {}
    : lacking("MongoDB: access to fastdl.mongodb.org, or MONGOMS_SYSTEM_BINARY=/path/of/mongod");

/** Runs tests against a real MongoDB; they are skipped without it. */
export function describeWithMongo(
  name: string,
  kind: "standalone" | "set of one" | "set of three",
  tests: (mongo: TestMongo) => void,
): void {
  const start = (): Promise<MongoMemoryServer | MongoMemoryReplSet> =>
    kind === "standalone" ? createServer() : createSet(kind === "set of one" ? 1 : 3);
  describe(name, needsMongo(), () => {
    let running: Awaited<ReturnType<typeof start>>;
    const servers = () => ("servers" in running ? running.servers : [running]);
    const members = () => servers().flatMap(toMember);
    beforeAll(async () => {
      running = await start();
    });
    afterAll(async () => {
      for (const { signal } of members()) signal("SIGCONT");
      await running.stop();
    });
    const url = () => running.getUri(`test-${v4()}`);
    tests({ url, members, revive: () => revive(servers()) });
  });
}

/** The members of a set, the primary first. */
export async function findMembers(mongo: TestMongo): Promise<Member[]> {
  const client = await connectTo(mongo.url());
  const primary = await waitFor(async () => {
    const hello = await client.db("admin").command({ hello: 1 });
    return hello.isWritablePrimary ? Number(hello.me.split(":")[1]) : undefined;
  });
  const members = mongo.members();
  return members.toSorted((a, b) => Number(b.port === primary) - Number(a.port === primary));
}

/** A client of MongoDB itself, until the end of the test. */
export async function connectTo(url: string, options?: MongoClientOptions): Promise<MongoClient> {
  const client = await MongoClient.connect(url, options);
  onTestFinished(() => client.close());
  return client;
}

/**
 * Has commands of the service fail, by this client of their server, until the end of the test.
 *
 * @returns a function that says in which mode of a fail point they do from now on, and how
 */
export function failCommands(client: MongoClient) {
  const fail = (mode: object | string, how: object = {}, command = "insert") => {
    const data = { failCommands: [command], appName: "investor-records", ...how };
    return client.db("admin").command({ configureFailPoint: "failCommand", mode, data });
  };
  onTestFinished(async () => void (await fail("off")));
  return fail;
}

/** Has callers of a MongoDB, until the end of the test, come by a port whose proxy passes on what it is given. */
export function startProxy(
  mongo: TestMongo,
  relay: (caller: Socket, server: Socket) => void,
): Promise<number> {
  const proxy = createProxy((caller) => {
    const server = connect(mongo.members()[0]?.port ?? 0, "127.0.0.1");
    for (const each of [caller, server]) each.on("error", () => {});
    caller.on("close", () => server.destroy());
    server.on("close", () => caller.destroy());
    relay(caller, server);
  });
  return listen(proxy);
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
  const set = await createSet(1, { auth });
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

function createSet(count: number, options: object = {}): Promise<MongoMemoryReplSet> {
  const configSettings = { electionTimeoutMillis: electionTimeoutMs };
  return MongoMemoryReplSet.create({
    instanceOpts: Array.from({ length: count }, () => ({ launchTimeout, args })),
    replSet: { count, storageEngine: "wiredTiger", configSettings, ...options },
  });
}

function toMember({ instanceInfo }: MongoMemoryServer): Member[] {
  const process = instanceInfo?.instance.mongodProcess;
  if (instanceInfo === undefined || process === undefined) return [];
  return [{ port: instanceInfo.port, signal: (signal) => void process.kill(signal) }];
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
