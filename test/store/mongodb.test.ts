import { once } from "node:events";
import { createServer } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { Code } from "@connectrpc/connect";
import {
  Binary,
  type CreateCollectionOptions,
  type CreateIndexesOptions,
  type Db,
  type IndexSpecification,
  ObjectId,
  UUID,
} from "mongodb";
import { v4, v7 } from "uuid";
import { describe, expect, it, onTestFinished, vi } from "vitest";
import { InvestorType } from "../../gen/investor/v1/investor_pb.js";
import { ConfigError } from "../../src/config-error.ts";
import { createMongoClient } from "../../src/store/mongodb/client.ts";
import { toDocument } from "../../src/store/mongodb/documents.ts";
import { createMongoStore } from "../../src/store/mongodb/mongodb.ts";
import {
  OutcomeUnknownError,
  RecordRefusedError,
  type Store,
  StoreClosedError,
  StoreUnavailableError,
} from "../../src/store/store.ts";
import { clientsOf } from "../support/clients.ts";
import { removeHere } from "../support/copying.ts";
import { failureOf } from "../support/errors.ts";
import { temporaryFolder } from "../support/folder.ts";
import {
  connectTo,
  describeWithMongo,
  failCommands,
  findMembers,
  startProxy,
} from "../support/mongodb.ts";
import { openCall, paths, rawConnection, replyOf } from "../support/raw-grpc.ts";
import { aCreate, anInvestor } from "../support/records.ts";
import { startInProcess } from "../support/server.ts";
import { ask, createBody, grpcClient, waitFor } from "../support/service.ts";
import { listen } from "../support/tcp.ts";
import { describeStoreContract } from "./contract.ts";

/** Opens a store, with what it reports. */
function open(url: string, requestTimeoutMs = 600_000) {
  const fatal: Error[] = [];
  const told: (Error | undefined)[] = [];
  const observed: string[] = [];
  const store = createMongoStore(url, {
    requestTimeoutMs,
    observe: (operation) => observed.push(operation),
    onFatal: (error) => fatal.push(error),
    onWritable: (refusal) => told.push(refusal),
  });
  onTestFinished(() => store.close());
  return { ...store, fatal, told, observed };
}

/** The collection of a store, for another program. */
async function collectionOf(url: string) {
  return (await connectTo(url)).db().collection("investors");
}

/** Counts the proofs in the oplog that a primary was none other's predecessor. */
async function proofsIn(url: string) {
  const oplog = (await connectTo(url)).db("local").collection("oplog.rs");
  return () => oplog.countDocuments({ op: "n", "o.msg": "linearizable read" });
}

const databaseOf = (mongo: { url(): string }) => () => {
  const url = mongo.url();
  return () => open(url);
};

describeWithMongo("MongoDB, standalone", "standalone", (mongo) => {
  it("stores nothing under another spelling of a database's name", async () => {
    const url = mongo.url();
    await open(url).insert(anInvestor());
    const other = open(url.replace("/test-", "/Test-"));
    await expect(other.insert(anInvestor())).rejects.toThrow(StoreUnavailableError);
  });

  it("tells how long each piece of work has taken", async () => {
    const store = open(mongo.url());
    await store.insert(anInvestor());
    await store.find(v7());
    await store.list({ limit: 1 });
    await store.ping();
    expect(store.observed).toEqual(["insert", "find", "find", "list", "check"]);
  });

  it("keeps a record as a document that others can read, in investors if the URL names no database", async () => {
    const url = mongo.url().replace(/\/test-[^?]*/, "/");
    const record = anInvestor({ type: InvestorType.INSTITUTION });
    await open(url).insert(record);
    const client = await connectTo(url);
    const document = await client.db("investors").collection("investors").findOne();
    const { $typeName: _, id, type: __, ...texts } = record;
    expect(document).toEqual({ _id: new UUID(id), type: "institution", ...texts });
  });

  it("has whole pages of documents to which another program added much, and never says that a record is missing", async () => {
    const url = mongo.url();
    const store = open(url);
    const records = Array.from({ length: 20 }, () => anInvestor());
    for (const record of records) await store.insert(record);
    const collection = await collectionOf(url);
    await collection.updateMany({}, { $set: { notes: "x".repeat(1e6) } });
    expect(await store.list({ limit: 20 })).toHaveLength(20);
    await collection.updateMany({}, { $set: { city: "x".repeat(1e6) } });
    await expect(store.list({ limit: 20 })).rejects.toThrow("MongoDB's reply is full");
    const finds = records.map(({ id }) => store.find(id).then((found) => found?.id, String));
    for (const [i, found] of (await Promise.all(finds)).entries()) {
      if (found !== records[i]?.id) expect(found).toContain("is full");
    }
    expect(await store.list({ limit: 10 })).toHaveLength(10);
  });

  it("lists no document that has the key of another program", async () => {
    const url = mongo.url();
    const { _id, ...content } = toDocument(anInvestor());
    const legacy = (byte: number) => new Binary(Buffer.alloc(16, byte), Binary.SUBTYPE_UUID_OLD);
    const keys = [1, "a", new ObjectId(), legacy(0xff), legacy(0), new Binary(Buffer.alloc(17, 1))];
    const documents = keys.map((key) => ({ ...content, _id: key as ObjectId }));
    const store = open(url);
    await store.ping();
    await (await collectionOf(url)).insertMany(documents);
    const ids = [`00000000-0000-7000-8000-000000000000`, v7(), v7()];
    for (const id of ids) await store.insert(anInvestor({ id }));
    await store.ping();
    const first = await store.list({ limit: 1 });
    const rest = await store.list({ after: first[0]?.id ?? "", limit: 10 });
    expect([...first, ...rest].map(({ id }) => id)).toEqual(ids);
  });

  const make = (options: CreateCollectionOptions) => (db: Db) =>
    db.createCollection("investors", options);
  const makeCapped = make({ capped: true, size: 4_096 });
  const makeView = make({ viewOn: "others", pipeline: [] });
  const addForeign = (key: unknown) => async (db: Db) => {
    const foreign = { _id: key as ObjectId, name: "Ada" };
    await db.collection("investors").insertMany([toDocument(anInvestor()), foreign]);
  };

  it.each<[what: string, make: (db: Db) => Promise<unknown>, fault: string]>([
    ["that is capped", makeCapped, "it is capped, and drops old records"],
    ["that is a view", makeView, "it is a view"],
    ["that is a time series", make({ timeseries: { timeField: "at" } }), "it is a timeseries"],
    ["with an id", addForeign(new ObjectId(Buffer.alloc(12, 1))), '"010101010101010101010101"}'],
    ["with a text as key", addForeign("a\u001bb"), 'its document with the key "a\\u001bb" is not'],
    [
      "with a UUID that has no field of a record",
      addForeign(new UUID("00000000-0000-4000-8000-000000000000")),
      'key {"$binary":{"base64":"AAAAAAAAQACAAAAAAAAAAA==","subType":"04"}} is not a record',
    ],
  ])("refuses a collection %s", async (_, change, fault) => {
    const url = mongo.url();
    const db = (await connectTo(url)).db();
    await change(db);
    const before = await db.collection("investors").countDocuments();
    const store = open(url);
    const failure = await store.insert(anInvestor()).catch((error) => error);
    expect(failure.message).toContain(fault);
    expect(failure.message).toMatch(
      new RegExp(`^the collection investors of the database ${db.databaseName} cannot be used, `),
    );
    await expect(store.ping()).rejects.toThrow(fault);
    expect(store.fatal).toEqual([failure]);
    expect(await db.collection("investors").countDocuments()).toBe(before);
  });

  it("looks again when a create fails and once a minute, and ends where the collection became another", async () => {
    const url = mongo.url();
    const db = (await connectTo(url)).db();
    const store = open(url);
    await store.insert(anInvestor());
    await db.collection("investors").drop();
    await makeCapped(db);
    await store.ping();
    expect(store.fatal).toEqual([]);
    const now = performance.now.bind(performance);
    const clock = vi.spyOn(performance, "now").mockImplementation(() => now() + 61_000);
    onTestFinished(() => clock.mockRestore());
    await expect(store.ping()).rejects.toThrow("it is capped, and drops old records");
    expect(store.fatal).toHaveLength(1);

    await db.collection("investors").drop();
    const other = open(url);
    await other.insert(anInvestor());
    await db.collection("investors").drop();
    await makeView(db);
    await expect(other.insert(anInvestor())).rejects.toThrow(StoreUnavailableError);
    await expect(other.ping()).rejects.toThrow("it is a view");
    expect(other.fatal).toHaveLength(1);
  });

  it.each<[keys: IndexSpecification, how: CreateIndexesOptions, bad: object, why: string]>([
    [
      { lastName: 1, zipCode: 1 },
      { unique: true },
      { lastName: "first" },
      "the unique index of lastName, zipCode rejects it",
    ],
    [
      { lastName: "text" },
      {},
      { language: "ja" },
      "MongoDB rejects it with the error 17262: see the collection's indexes",
    ],
  ])(
    "refuses one record for good, where an index rejects it: %j, %j",
    async (keys, how, bad, why) => {
      const url = mongo.url();
      await (await collectionOf(url)).createIndex(keys, how);
      const store = open(url);
      await store.insert(anInvestor({ lastName: "first" }));
      await expect(store.insert(anInvestor(bad))).rejects.toThrow(new RecordRefusedError(why));
      await store.insert(anInvestor({ lastName: "second" }));
      expect(store.told).toEqual([undefined, undefined]);
    },
  );

  it("ends with the first reply of another command; a collection out of order fails its lists alone", async () => {
    const url = mongo.url();
    const [first, second] = [v7(), v7()];
    for (const id of [first, second]) await open(url).insert(anInvestor({ id }));
    const [one, other] = [first, second].map((id) => Buffer.from(id.replaceAll("-", ""), "hex"));
    let faults = 0;
    const port = await startProxy(mongo, (caller, server) => {
      caller.pipe(server);
      server.on("data", (chunk: Buffer) => {
        const at = chunk.indexOf(other ?? "");
        if (at !== -1 && faults-- > 0) one?.copy(chunk, at);
        caller.write(chunk);
      });
    });
    const mixedUp = "MongoDB's replies are mixed up, as by a proxy";
    const unordered = `MongoDB lists the record ${first} out of order`;
    const list = (after?: string) => (store: Store) => store.list({ after, limit: 2 });
    for (const [read, times, words, ends] of [
      [list(), 1, `${mixedUp}: a page is not in order`, true],
      [list(first), 1, `${mixedUp}: a page is not in order`, true],
      [list(), 9, unordered, false],
      [list(first), 9, unordered, false],
      [(store: Store) => store.find(second), 1, `${mixedUp}: a record was not asked for`, true],
    ] as const) {
      faults = 0;
      const store = open(url.replace(/:\d+/, `:${port}`));
      await store.ping();
      faults = times;
      const message = expect.stringContaining(words);
      const failure = await read(store).catch((error) => error);
      expect(failure).not.toBeInstanceOf(StoreUnavailableError);
      expect(failure).toMatchObject({ message });
      expect(store.fatal).toEqual(ends ? [expect.objectContaining({ message })] : []);
      if (ends) await expect(store.insert(anInvestor())).rejects.toThrow(StoreClosedError);
      else expect(await store.find(first)).toBeDefined();
    }
  });

  it("reports a record that the server refuses alone, and stores its neighbours", async () => {
    const url = mongo.url();
    const validator = { lastName: { $ne: "refused" } };
    await (await connectTo(url)).db().createCollection("investors", { validator });
    const store = open(url);
    const records = Array.from({ length: 50 }, (_, i) =>
      anInvestor({ lastName: i === 20 ? "refused" : "fine" }),
    );
    const outcomes = await Promise.allSettled(records.map((record) => store.insert(record)));
    const refused = outcomes.flatMap(({ status }, i) => (status === "rejected" ? [i] : []));
    expect(refused).toEqual([20]);
    expect(await store.list({ limit: 100 })).toHaveLength(49);
    expect(store.told.every((refusal) => refusal === undefined)).toBe(true);
  });

  it("fails what runs when another member becomes the primary, but not what waits for one", async () => {
    const { client, run } = createMongoClient(mongo.url(), 5_000);
    onTestFinished(() => client.close());
    const primary = () => ({ type: "RSPrimary", address: v4() });
    const elect = () =>
      client.emit("topologyDescriptionChanged", {
        newDescription: { servers: new Map([["", primary()]]) },
      } as never);
    const waiting = run({ ping: 1 });
    elect();
    await waiting;
    elect();
    const running = run({ ping: 1 });
    elect();
    await expect(running).rejects.toThrow("another member has become the primary");
  });

  it("says what was removed, however the URL has the driver decode replies", async () => {
    const url = mongo.url();
    const record = anInvestor();
    await open(url).insert(record);
    const removal = await removeHere(temporaryFolder(), `${url}?promoteValues=false`, record.id);
    expect(removal.told).toContain(`removed ${record.id}`);
  });

  describe("that ends what it runs", () => {
    async function openFailing() {
      const url = mongo.url();
      const fail = failCommands(await connectTo(url));
      // The driver may look again at a server that failed only after a quarter of the timeout.
      const store = open(url, 20_000);
      // Once it is connected, it looks at the server no more.
      await store.ping();
      return { fail, url, store };
    }

    /** A client of a service on a database, once that is connected. */
    async function startOver(url: string, timeout: string) {
      const flags = { "--database-url": url, "--request-timeout": timeout };
      const server = await startInProcess(flags);
      await waitFor(async () => (await ask(server, "/readyz")).ok);
      return grpcClient(server);
    }

    const deposed = { code: 10_107, errmsg: "deposed" };
    const refused = { errorCode: deposed.code };

    it("leaves an insert open that may be written, and none that was refused", async () => {
      const { fail, store } = await openFailing();
      for (const [how, error, isStored, isTold] of [
        [{ writeConcernError: deposed }, OutcomeUnknownError, true, false],
        [{ closeConnection: true }, OutcomeUnknownError, false, false],
        [refused, StoreUnavailableError, false, false],
        [{ errorCode: 13 }, StoreUnavailableError, false, true],
        [{ errorCode: 189 }, OutcomeUnknownError, false, false],
        [{ errorCode: 8_000 }, StoreUnavailableError, false, true],
      ] as const) {
        const record = anInvestor();
        await fail({ times: 1 }, how);
        await expect(store.insert(record), JSON.stringify(how)).rejects.toThrow(error);
        expect((await store.find(record.id)) !== undefined, JSON.stringify(how)).toBe(isStored);
        expect(store.told.splice(0), JSON.stringify(how)).toHaveLength(isTold ? 1 : 0);
      }
    });

    it("has each create once whose outcome was open, and no outcome made up", async () => {
      const { fail, url, store } = await openFailing();
      const db = (await connectTo(url)).db();
      const validate = (validator: object) => db.command({ collMod: "investors", validator });
      const service = await startOver(url, "20s");
      // Two, since each failure makes its driver look for the server anew.
      const [failing, other] = [await startOver(url, "6s"), await startOver(url, "6s")];
      const unknown = { code: "Unavailable", reason: "OUTCOME_UNKNOWN" };
      let count = 0;
      for (const how of [{ writeConcernError: deposed }, { closeConnection: true }]) {
        for (const changes of [{}, { requestId: v4() }]) {
          await fail({ times: 1 }, how);
          const investor = await service.createInvestor(aCreate(changes));
          count += 1;
          expect(await store.list({ limit: 10 })).toHaveLength(count);
          expect(await store.find(investor.id)).toEqual(investor);
        }
      }

      // What refuses a replay says nothing of the first attempt.
      await fail("alwaysOn", { writeConcernError: deposed });
      const request = aCreate({ requestId: v7() });
      const open = failureOf(failing.createInvestor(request));
      const nameless = failureOf(other.createInvestor(aCreate()));
      await waitFor(async () => (await store.list({ limit: 10 })).length === count + 2);
      // The server switches between failures by turning them off for a moment.
      await validate({ _id: null });
      await fail("alwaysOn", refused);
      expect(await open).toMatchObject(unknown);
      const id = (await nameless).metadata?.id;
      expect(await nameless).toMatchObject({ code: "Unknown", reason: "OUTCOME_UNKNOWN" });
      await fail("off");
      await validate({});
      expect(await store.find(id ?? "")).toBeDefined();
      const first = await service.createInvestor(request);
      expect(await store.list({ limit: 10 })).toHaveLength(count + 2);

      // A repeat whose record cannot be read back.
      await fail("alwaysOn", { errorCode: 8_000 }, "find");
      expect(await failureOf(failing.createInvestor(request))).toMatchObject(unknown);
      await fail("off");
      expect(await service.createInvestor(request)).toEqual(first);
    });

    it("leaves time to name the id of an open outcome within its caller's deadline, and the service's own, which a slow upload uses up", async () => {
      const { fail, url } = await openFailing();
      const flags = { "--database-url": url, "--request-timeout": "6s" };
      const server = await startInProcess(flags);
      await fail("alwaysOn", { closeConnection: true });
      const upload = openCall(rawConnection(server.port), paths.create);
      const creates = Object.values(clientsOf(server)).map((client) =>
        failureOf(client.createInvestor(aCreate(), { timeoutMs: 4_000 })),
      );
      // More than the quarter that is left for the reply.
      await delay(2_000);
      const reply = await replyOf(upload.end(createBody()));
      expect(reply).toEqual({ status: Code.Unknown, reason: "OUTCOME_UNKNOWN" });
      for (const { reason, metadata } of await Promise.all(creates)) {
        expect(reason).toBe("OUTCOME_UNKNOWN");
        expect(metadata?.id).toMatch(/^[0-9a-f-]{36}$/);
      }
    });
  });
});

describeWithMongo("MongoDB, a set of one", "set of one", (mongo) => {
  describeStoreContract("MongoDB, a set of one", databaseOf(mongo));

  it("proves misses and pages without a wait for the oplog, since nobody else can be elected", async () => {
    const url = mongo.url();
    const proofs = await proofsIn(url);
    const store = open(url);
    await store.insert(anInvestor());
    const before = await proofs();
    expect(await store.find(v4())).toBeUndefined();
    expect(await store.list({ limit: 10 })).toHaveLength(1);
    expect(await proofs()).toBe(before);
  });

  it("knows each read that a deposed primary refuses as such", async () => {
    const url = mongo.url();
    const fail = failCommands(await connectTo(url));
    const store = open(url, 20_000);
    await store.insert(anInvestor());
    await fail("alwaysOn", { errorCode: 10_107 }, "find");
    const reads = Array.from({ length: 4 }, () => store.list({ limit: 1 }));
    for (const outcome of await Promise.allSettled(reads)) {
      const message = expect.stringContaining("(NotWritablePrimary)");
      expect(outcome).toMatchObject({ status: "rejected", reason: { message } });
    }
    await fail("off");
    expect(await store.list({ limit: 1 })).toHaveLength(1);
  });

  it("takes a reply that comes twice for no proof of the next insert", async () => {
    const url = mongo.url();
    let next: "pass" | "repeat" | "lose" = "pass";
    const port = await startProxy(mongo, (caller, server) => {
      let isInsert = false;
      caller.on("data", (chunk: Buffer) => {
        isInsert = chunk.includes("documents");
        if (isInsert && next === "lose") next = "pass";
        else server.write(chunk);
      });
      server.on("data", (chunk: Buffer) => {
        caller.write(chunk);
        if (!isInsert || next !== "repeat") return;
        next = "lose";
        setTimeout(() => caller.write(chunk), 30);
      });
    });
    const direct = url.replace(/:\d+/, `:${port}`).replace(/\?.*/, "?directConnection=true");
    const store = open(direct, 8_000);
    const first = anInvestor();
    await store.ping();
    next = "repeat";
    await store.insert(first);
    await expect(store.insert(anInvestor())).rejects.toThrow(OutcomeUnknownError);
    const message =
      "MongoDB's replies are mixed up, as by a proxy: one does not belong to its insert";
    expect(store.fatal).toEqual([expect.objectContaining({ message })]);
    await expect(store.insert(anInvestor())).rejects.toThrow(StoreClosedError);
    expect(await open(url).list({ limit: 10 })).toEqual([first]);
  });
});

describeWithMongo("MongoDB, three members", "set of three", (mongo) => {
  describeStoreContract("MongoDB, three members", databaseOf(mongo));

  it("leaves nothing in the oplog by a ping", async () => {
    const url = mongo.url();
    const proofs = await proofsIn(url);
    const before = await proofs();
    const store = open(url);
    for (let i = 0; i < 5; i += 1) await store.ping();
    expect(await proofs()).toBe(before);
    await store.find(v4());
    expect(await proofs()).toBeGreaterThan(before);
  });

  it("says that a miss or a page cannot be proved, never that nothing is there", async () => {
    const url = mongo.url();
    const record = anInvestor();
    await open(url).insert(record);
    const store = open(url, 2_000);
    const [primary, ...secondaries] = await findMembers(mongo);
    expect(primary).toBeDefined();
    for (const each of secondaries) each.signal("SIGSTOP");
    try {
      await expect(store.find(v4())).rejects.toThrow(StoreUnavailableError);
      await expect(store.list({ limit: 1 })).rejects.toThrow(StoreUnavailableError);
      // The primary steps down once it misses the others for the time of an election.
      const failure = () => store.ping().catch((error) => error);
      await expect.poll(failure).toBeInstanceOf(StoreUnavailableError);
    } finally {
      for (const each of secondaries) each.signal("SIGCONT");
    }
    await waitFor(() => store.find(record.id).catch(() => undefined));
  });
});

/** All calls, with a signal. */
const callAll = (store: Store, signal: AbortSignal) => [
  store.insert(anInvestor(), signal),
  store.find(v4(), { signal }),
  store.list({ limit: 1 }, signal),
  store.ping(signal),
];

it.for([6_000, 1_900])("fails within a request timeout of %i ms without a server", async (ms) => {
  const calls = callAll(open("mongodb://127.0.0.1:9/", ms), AbortSignal.timeout(ms));
  const reason = expect.any(StoreUnavailableError);
  expect(await Promise.allSettled(calls)).toEqual(Array(4).fill({ status: "rejected", reason }));
});

it("takes back what waits for a server that does not reply, with the reason", async () => {
  const silent = createServer();
  const store = open(`mongodb://127.0.0.1:${await listen(silent)}/`, 20_000);
  const reason = new Error("the caller left");
  const controller = new AbortController();
  const outcomes = Promise.allSettled(callAll(store, controller.signal));
  const others = Promise.allSettled([store.insert(anInvestor()), store.find(v4())]);
  await once(silent, "connection");
  controller.abort(reason);
  expect(await outcomes).toEqual(Array(4).fill({ status: "rejected", reason }));
  await Promise.all([store.close(), store.close()]);
  for (const other of await others) {
    expect(other).toMatchObject({ reason: expect.any(StoreUnavailableError) });
  }
});

it("names what is wrong with a URL, and never repeats the password in it", () => {
  for (const [url, what] of [
    ["mongodb://user:s3cret@host:x/", "check its options and hosts, and percent-encode"],
    ["mongodb://user:s3 [cret@s3 [cret/s3@host", "percent-encode its user, password"],
    ["mongodb://user:s3?cret=s3cret@host/", "percent-encode its user, password and database"],
    ["mongodb://u:p@host/?replicaset2=s3cret", "check its options and hosts"],
    ["mongodb://host/?tlsCertificateKeyFilePassword=a&s3cret=", "check its options and hosts"],
    ["mongodb://a.b,c.d/?directConnection=true", "check its options and hosts"],
    ["mongodb://host/?compressors=s3cret", "check its options and hosts"],
    ["mongodb://host/?tlsCAFile=ca.pem", "its tls… options need tls=true"],
    ["mongodb://host/?tls=false&tlsInsecure=true", "its tls… options need tls=true"],
    ["mongodb://user:s3cret@host/a.b", "its database has"],
    ["mongodb://host/a%20b", "its database has"],
    ["mongodb://host/a$b", "its database has"],
    ["mongodb://host/a/b", "its database has"],
    ["mongodb://host/a&tls=true", "its database has"],
    ["mongodb://host/db#s3cret", "its database has"],
    ["mongodb://host/local", "or is local or config"],
  ] as const) {
    expect(() => open(url), url).toThrow(ConfigError);
    expect(() => open(url), url).toThrow(what);
    expect(() => open(url), url).not.toThrow("s3");
  }
});
