import { once } from "node:events";
import { type AddressInfo, createServer } from "node:net";
import { setImmediate as nextTurn } from "node:timers/promises";
import {
  Binary,
  type Db,
  type Document,
  MongoClient,
  MongoNetworkError,
  MongoServerError,
  MongoWriteConcernError,
  ObjectId,
} from "mongodb";
import { MongoMemoryServer } from "mongodb-memory-server-core";
import { v4, v7 } from "uuid";
import { describe, expect, it, onTestFinished } from "vitest";
import { InvestorType } from "../../gen/investor/v1/investor_pb.js";
import { ConfigError } from "../../src/config.ts";
import { createMongoStore } from "../../src/store/mongodb.ts";
import { toDocument } from "../../src/store/mongodb-document.ts";
import { insertAndReplay } from "../../src/store/mongodb-insert.ts";
import { createMongoReader } from "../../src/store/mongodb-reader.ts";
import {
  DuplicateIdError,
  OutcomeUnknownError,
  StoreUnavailableError,
} from "../../src/store/store.ts";
import { failureOf } from "../support/errors.ts";
import { collectGarbage } from "../support/garbage.ts";
import { serviceOver } from "../support/in-process.ts";
import { describeWithMongo, findMembers } from "../support/mongodb.ts";
import { startProxy } from "../support/proxy.ts";
import { aCreate, anInvestor } from "../support/records.ts";
import { waitFor } from "../support/service.ts";
import { describeStoreContract } from "./contract.ts";

const open = (url: string) => {
  const store = createMongoStore(url, { requestTimeoutMs: 10_000, observe() {} });
  onTestFinished(() => store.close());
  return store;
};

await describeWithMongo("MongoDB, standalone", "standalone", (mongo) => {
  describeStoreContract("MongoDB, standalone", async () => {
    const url = mongo.url();
    return { open: async () => open(url) };
  });

  it("keeps a record as a document that others can read", async () => {
    const url = mongo.url();
    const record = anInvestor({ type: InvestorType.INSTITUTION });
    await open(url).insert(record);
    const client = await MongoClient.connect(url);
    onTestFinished(() => client.close());
    const [document] = await client.db().collection("investors").find().toArray();
    const { $typeName: _, id, type: __, ...texts } = record;
    expect(document).toEqual({ _id: expect.any(Binary), type: "institution", ...texts });
    const key = document?._id as unknown as Binary | undefined;
    expect(key?.sub_type).toBe(4);
    expect(key?.toUUID().toString()).toBe(id);
  });

  it("uses the database investors if the URL names none", async () => {
    const url = mongo.url().replace(/\/test-[^?]*/, "/");
    const record = anInvestor({ lastName: v4() });
    await open(url).insert(record);
    const client = await MongoClient.connect(url);
    onTestFinished(() => client.close());
    const found = client
      .db("investors")
      .collection("investors")
      .find({ lastName: record.lastName });
    expect(await found.toArray()).toHaveLength(1);
  });

  it("has whole pages of documents to which another program added much", async () => {
    const url = mongo.url();
    const store = open(url);
    const records = Array.from({ length: 20 }, () => anInvestor());
    for (const record of records) await store.insert(record);
    const database = await MongoClient.connect(url);
    onTestFinished(() => database.close());
    await database
      .db()
      .collection("investors")
      .updateMany({}, { $set: { notes: "x".repeat(1e6) } });
    expect(await store.list({ limit: 20 })).toHaveLength(20);
  });

  it("lists no document that has the key of another program", async () => {
    const url = mongo.url();
    const client = await MongoClient.connect(url);
    onTestFinished(() => client.close());
    const { _id, ...content } = toDocument(anInvestor());
    const legacy = (byte: number) => new Binary(Buffer.alloc(16, byte), Binary.SUBTYPE_UUID_OLD);
    const keys = [1, "a", new ObjectId(), legacy(0xff), legacy(0), new Binary(Buffer.alloc(17, 1))];
    const documents = keys.map((key) => ({ ...content, _id: key as ObjectId }));
    await client.db().collection("investors").insertMany(documents);
    const store = open(url);
    const ids = [`00000000-0000-7000-8000-000000000000`, v7(), v7()];
    for (const id of ids) await store.insert(anInvestor({ id }));
    await store.ping();
    const first = await store.list({ limit: 1 });
    const rest = await store.list({ after: first[0]?.id ?? "", limit: 10 });
    expect([...first, ...rest].map(({ id }) => id)).toEqual(ids);
  });

  it("takes a page whose ids do not ascend for damage", async () => {
    const url = mongo.url();
    const [first, second] = [v7(), v7()];
    for (const id of [first, second]) await open(url).insert(anInvestor({ id }));
    const [one, other] = [first, second].map((id) => Buffer.from(id.replaceAll("-", ""), "hex"));
    const { port } = await startProxy(mongo.members()[0]?.port ?? 0, (chunk) => {
      const at = chunk.indexOf(other ?? "");
      if (at !== -1) one?.copy(chunk, at);
      return chunk;
    });
    const store = open(url.replace(/:\d+/, `:${port}`));
    expect(await store.list({ limit: 1 })).toHaveLength(1);
    await expect(store.list({ limit: 2 })).rejects.toThrow(
      `the database is damaged after the id ${first}: the next id is ${first}`,
    );
    await expect(store.list({ after: first, limit: 2 })).rejects.toThrow("damaged after the id");
    await store.ping();
  });

  it("reports a record that the server refuses alone, and stores its neighbours", async () => {
    const url = mongo.url();
    const client = await MongoClient.connect(url);
    onTestFinished(() => client.close());
    const validator = { lastName: { $ne: "refused" } };
    await client.db().createCollection("investors", { validator });
    const store = open(url);
    const records = Array.from({ length: 50 }, (_, i) =>
      anInvestor({ lastName: i === 20 ? "refused" : "fine" }),
    );
    const outcomes = await Promise.allSettled(records.map((record) => store.insert(record)));
    const refused = outcomes.flatMap(({ status }, i) => (status === "rejected" ? [i] : []));
    expect(refused).toEqual([20]);
    expect(await store.list({ limit: 100 })).toHaveLength(49);
  });
});

await describeWithMongo("MongoDB that ends what it runs", "standalone", () => {
  it("leaves an insert open that was written, and none that was refused", async () => {
    const args = ["--setParameter", "enableTestCommands=1"];
    const server = await MongoMemoryServer.create({
      instance: { storageEngine: "wiredTiger", args },
    });
    onTestFinished(async () => void (await server.stop()));
    const client = await MongoClient.connect(server.getUri());
    onTestFinished(() => client.close());
    const fail = (mode: object | string, how: object, command = "insert") => {
      const data = { failCommands: [command], ...how };
      return client.db("admin").command({ configureFailPoint: "failCommand", mode, data });
    };
    const deposed = { code: 10_107, errmsg: "deposed" };
    // Attempts of 1.5 s: the driver looks for a primary every 0.5 s.
    const options = { requestTimeoutMs: 6_000, observe() {} };
    const store = createMongoStore(server.getUri("test"), options);
    onTestFinished(() => store.close());
    const [open, refused, replayed] = [anInvestor(), anInvestor(), anInvestor()];

    await fail("alwaysOn", { writeConcernError: deposed });
    await expect(store.insert(open)).rejects.toThrow(OutcomeUnknownError);
    expect(await store.find(open.id)).toBeDefined();

    await fail({ times: 1 }, { errorCode: deposed.code });
    await expect(store.insert(refused)).rejects.toThrow(StoreUnavailableError);
    expect(await store.find(refused.id)).toBeUndefined();

    await fail({ times: 1 }, { writeConcernError: deposed });
    await store.insert(replayed);
    await fail({ times: 1 }, { closeConnection: true });
    await store.insert(refused);
    expect(await store.list({ limit: 10 })).toHaveLength(3);

    const service = serviceOver(store);
    const request = aCreate({ requestId: v4() });
    const first = await service.createInvestor(request);
    await fail("alwaysOn", { errorCode: deposed.code }, "find");
    expect(await failureOf(service.createInvestor(request))).toMatchObject({
      code: "Unavailable",
      reason: "OUTCOME_UNKNOWN",
    });
    await fail("off", {}, "find");
    expect(await service.createInvestor(request)).toEqual(first);
  });
});

/** How many linearizable reads a server has been asked for since the result was made. */
async function countLinearizable(url: string): Promise<() => Promise<number>> {
  const client = await MongoClient.connect(url);
  onTestFinished(() => client.close());
  const count = async () => {
    const status = await client.db("admin").command({ serverStatus: 1 });
    return Number(status.readConcernCounters.nonTransactionOps.linearizable);
  };
  const before = await count();
  return async () => (await count()) - before;
}

await describeWithMongo("MongoDB, a set of one", "set of one", (mongo) => {
  describeStoreContract("MongoDB, a set of one", async () => {
    const url = mongo.url();
    return { open: async () => open(url) };
  });

  it("needs no proof that no other member was elected, until another can be", async () => {
    const url = mongo.url();
    const store = open(url);
    const record = anInvestor();
    await store.insert(record);
    const countSince = await countLinearizable(url);
    expect(await store.find(v4())).toBeUndefined();
    expect(await store.list({ limit: 10 })).toHaveLength(1);
    expect(await countSince()).toBe(0);

    const client = await MongoClient.connect(url);
    onTestFinished(() => client.close());
    const admin = client.db("admin");
    const { config } = await admin.command({ replSetGetConfig: 1 });
    const second = await MongoMemoryServer.create({
      instance: { storageEngine: "wiredTiger", replSet: config._id },
    });
    const reconfigure = (members: object[]) =>
      waitFor(async () => {
        const { config: current } = await admin.command({ replSetGetConfig: 1 });
        const next = { ...current, version: current.version + 1, members };
        return admin.command({ replSetReconfig: next }).catch(() => undefined);
      });
    const host = `127.0.0.1:${second.instanceInfo?.port}`;
    onTestFinished(async () => void (await second.stop()));
    await reconfigure([...config.members, { _id: 1, host, priority: 1, votes: 1 }]);
    try {
      // It cannot be elected before it has the data.
      await waitFor(async () => (await admin.command({ hello: 1 })).hosts.length === 2);
      expect(await store.list({ limit: 10 })).toHaveLength(1);
      expect(await store.find(v4())).toBeUndefined();
      expect(await countSince()).toBeGreaterThanOrEqual(2);
    } finally {
      await reconfigure(config.members);
    }
    const since = await countLinearizable(url);
    await store.ping();
    expect(await store.list({ limit: 10 })).toHaveLength(1);
    expect(await since()).toBe(0);
  });
});

await describeWithMongo("MongoDB, three members", "set of three", (mongo) => {
  describeStoreContract("MongoDB, three members", async () => {
    const url = mongo.url();
    return { open: async () => open(url) };
  });

  it("proves misses and pages, and no hit", async () => {
    const url = mongo.url();
    const store = open(url);
    const record = anInvestor();
    await store.insert(record);
    const countSince = await countLinearizable(url);
    for (let i = 0; i < 10; i += 1) expect(await store.find(record.id)).toBeDefined();
    expect(await countSince()).toBe(0);
    expect(await store.find(v4())).toBeUndefined();
    expect(await countSince()).toBe(1);
    await store.list({ limit: 1 });
    expect(await countSince()).toBe(2);
  });

  it("says that a miss or a page cannot be proved, never that nothing is there", async () => {
    const url = mongo.url();
    const record = anInvestor();
    await open(url).insert(record);
    const store = createMongoStore(url, { requestTimeoutMs: 2_000, observe() {} });
    onTestFinished(() => store.close());
    const [primary, ...secondaries] = await findMembers(mongo);
    expect(primary).toBeDefined();
    for (const each of secondaries) each.signal("SIGSTOP");
    try {
      await expect(store.find(v4())).rejects.toThrow(StoreUnavailableError);
      await expect(store.list({ limit: 1 })).rejects.toThrow(StoreUnavailableError);
      await expect(store.ping()).rejects.toThrow(StoreUnavailableError);
    } finally {
      for (const each of secondaries) each.signal("SIGCONT");
    }
    await waitFor(() => store.find(record.id).catch(() => undefined));
  });
});

it.for([1_500, 400])("fails within a request timeout of %i ms without a server", async (ms) => {
  const url = "mongodb://127.0.0.1:9/";
  const store = createMongoStore(url, { requestTimeoutMs: ms, observe() {} });
  onTestFinished(() => store.close());
  const signal = AbortSignal.timeout(ms);
  await Promise.all([
    expect(store.insert(anInvestor(), signal)).rejects.toThrow(StoreUnavailableError),
    expect(store.find(v4(), { signal })).rejects.toThrow(StoreUnavailableError),
    expect(store.list({ limit: 1 }, signal)).rejects.toThrow(StoreUnavailableError),
    expect(store.ping(signal)).rejects.toThrow(StoreUnavailableError),
  ]);
});

it("rejects a lookup whose signal has aborted, with its reason", async () => {
  const store = createMongoStore("mongodb://127.0.0.1:9/", { requestTimeoutMs: 500, observe() {} });
  onTestFinished(() => store.close());
  const signal = AbortSignal.abort(new Error("enough"));
  await expect(store.find(v4(), { signal })).rejects.toBe(signal.reason);
});

it("takes back what waits for a server that does not reply, with the reason", async () => {
  const silent = createServer().listen(0, "127.0.0.1");
  onTestFinished(() => void silent.close());
  await once(silent, "listening");
  const { port } = silent.address() as AddressInfo;
  const url = `mongodb://127.0.0.1:${port}/`;
  const store = createMongoStore(url, { requestTimeoutMs: 60_000, observe() {} });
  const reason = new Error("the caller left");
  const controller = new AbortController();
  const { signal } = controller;
  const calls = [
    store.insert(anInvestor(), signal),
    store.find(v4(), { signal }),
    store.list({ limit: 1 }, signal),
    store.ping(signal),
  ];
  const outcomes = Promise.allSettled(calls);
  const others = Promise.allSettled([store.insert(anInvestor()), store.find(v4())]);
  await once(silent, "connection");
  collectGarbage();
  controller.abort(reason);
  expect(await outcomes).toEqual(calls.map(() => ({ status: "rejected", reason })));
  const cut = new AbortController();
  const closed = Promise.all([store.close(cut.signal), store.close(cut.signal)]);
  await nextTurn();
  collectGarbage();
  cut.abort();
  await closed;
  for (const other of await others) {
    expect(other).toMatchObject({ reason: expect.any(StoreUnavailableError) });
  }
});

describe("inserts that are replayed", () => {
  const duplicate = { code: 11_000, errmsg: "duplicate key" };
  const refused = { code: 121, errmsg: "validation failed" };
  const deposed = { code: 189, errmsg: "not primary any more" };
  const blocked = { code: 371, errmsg: "User writes blocked" };
  const noShard = { code: 6, errmsg: "Write results unavailable from a shard" };
  const otherIndex = { ...duplicate, keyPattern: { lastName: 1 } };
  const cut = new MongoNetworkError("the connection was cut");
  const unauthenticated = new MongoServerError({ code: 18, errmsg: "Authentication failed" });
  unauthenticated.addErrorLabel("HandshakeError");
  const notPrimary = new MongoServerError({ code: 10_107, errmsg: "not primary" });
  const noMajority = new MongoWriteConcernError({
    ok: 1,
    writeConcernError: { code: 10_107, errmsg: "deposed while waiting for a majority" },
  });

  /** Inserts one record, each attempt of which ends as told; the last stands for all that follow. */
  async function insertOne(
    attempts: ("stored" | typeof duplicate | Error)[],
    readBack: "same" | "other" | "nothing" = "nothing",
  ): Promise<{ outcome: unknown; attempts: number }> {
    const record = anInvestor();
    let count = 0;
    const command = async ({ insert, find }: Document): Promise<Document> => {
      if (find) {
        const stored = readBack === "same" ? record : anInvestor({ id: record.id });
        return { cursor: { firstBatch: readBack === "nothing" ? [] : [toDocument(stored)] } };
      }
      expect(insert).toBe("investors");
      const end = attempts[Math.min(count, attempts.length - 1)];
      count += 1;
      if (end instanceof Error) throw end;
      return { ok: 1, writeErrors: end === "stored" ? [] : [{ index: 0, ...end }] };
    };
    const db = { command } as unknown as Db;
    const insert = insertAndReplay(db, createMongoReader(db, 50), [record], 50);
    const [outcome] = await insert.catch((error) => [error]);
    return { outcome, attempts: count };
  }

  it("are surely not written where the first attempt was not sent, and only there", async () => {
    for (const surely of [notPrimary, unauthenticated, blocked]) {
      const refusal = await insertOne([surely]);
      expect(refusal.outcome).toBeInstanceOf(StoreUnavailableError);
      expect(refusal.attempts).toBe(1);
    }
    for (const open of [[cut, notPrimary], [noMajority]]) {
      const { outcome, attempts } = await insertOne(open);
      expect(outcome).toBeInstanceOf(OutcomeUnknownError);
      expect(attempts).toBeGreaterThan(2);
    }
  });

  it("are settled by a replay that stores them, and by nothing that refuses it", async () => {
    expect(await insertOne([cut, cut, "stored"])).toEqual({ outcome: undefined, attempts: 3 });
    expect((await insertOne([cut, refused])).outcome).toBeInstanceOf(OutcomeUnknownError);
    expect((await insertOne([refused])).outcome).toMatchObject({ message: refused.errmsg });
    for (const open of [deposed, noShard]) {
      expect(await insertOne([open, "stored"])).toEqual({ outcome: undefined, attempts: 2 });
    }
    expect((await insertOne([otherIndex])).outcome).not.toBeInstanceOf(DuplicateIdError);
  });

  it("are compared with the record that a replay meets, if that stays", async () => {
    expect((await insertOne([duplicate], "same")).outcome).toBeInstanceOf(DuplicateIdError);
    expect((await insertOne([cut, duplicate], "same")).outcome).toBeUndefined();
    expect((await insertOne([cut, duplicate], "other")).outcome).toBeInstanceOf(DuplicateIdError);
    expect((await insertOne([cut, duplicate])).outcome).toBeInstanceOf(OutcomeUnknownError);
    expect(await insertOne([cut, duplicate, "stored"])).toMatchObject({ outcome: undefined });
  });
});

it("never repeats a malformed URL, which may hold a password", () => {
  for (const url of [
    "mongodb://user:s3cret@host:x/",
    "mongodb://user:s3cret@host/?w=x&foo=%",
    "mongodb://user:s3cret@host/a.b",
    "mongodb://user:s3cret@host/%",
  ]) {
    expect(() => open(url)).toThrow(ConfigError);
    expect(() => open(url)).not.toThrow("s3cret");
  }
});
