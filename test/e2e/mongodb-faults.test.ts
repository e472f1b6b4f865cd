import { setTimeout as delay } from "node:timers/promises";
import { MongoClient, UUID } from "mongodb";
import { MongoMemoryServer } from "mongodb-memory-server-core";
import { v7 } from "uuid";
import { expect, it, onTestFinished } from "vitest";
import { failureOf } from "../support/errors.ts";
import { describeWithMongo, findMembers, type TestMongo } from "../support/mongodb.ts";
import { startProxy } from "../support/proxy.ts";
import { aCreate } from "../support/records.ts";
import { grpcClient, startService, waitFor } from "../support/service.ts";

const callers = 32;

/**
 * Creates records without a pause while a fault happens, each repeated with its request id
 * until it is answered, and expects each of them once in the database.
 */
async function createThrough(mongo: TestMongo, fault: () => Promise<void>): Promise<void> {
  const url = mongo.url();
  const service = await startService({ DATABASE_URL: url, REQUEST_TIMEOUT: "4s" });
  const clients = Array.from({ length: 4 }, () => grpcClient(service));
  const acknowledged = new Map<string, string>();
  const refusals = new Set<string>();
  let isOver = false;

  const storm = Array.from({ length: callers }, async (_, i) => {
    const client = clients[i % 4] as (typeof clients)[0];
    while (!isOver) {
      const request = aCreate({ requestId: v7() });
      const investor = await waitFor(async () => {
        const attempt = client.createInvestor(request);
        return attempt.catch(async () => {
          refusals.add((await failureOf(attempt)).code);
          await delay(50);
          return undefined;
        });
      });
      expect(acknowledged.has(investor.id)).toBe(false);
      acknowledged.set(investor.id, String(request.firstName));
    }
  });
  await delay(500);
  const before = acknowledged.size;
  await fault();
  await waitFor(async () => acknowledged.size > before + callers * 4);
  isOver = true;
  await Promise.all(storm);

  for (const code of refusals) expect(["Unavailable", "DeadlineExceeded"]).toContain(code);
  const client = await MongoClient.connect(url);
  onTestFinished(() => client.close());
  const documents = await client
    .db()
    .collection("investors")
    .find({}, { readConcern: { level: "majority" } })
    .toArray();
  const stored = new Map(
    documents.map(({ _id, firstName }) => [_id.toString("hex"), String(firstName)]),
  );
  const expected = new Map([...acknowledged].map(([id, name]) => [id.replaceAll("-", ""), name]));
  expect(stored).toEqual(expected);
}

await describeWithMongo("creates on three members", "set of three", (mongo) => {
  const timeout = 120_000;

  it("survive kill -9 of the primary", { timeout }, async () => {
    await createThrough(mongo, async () => {
      const [primary] = await findMembers(mongo);
      primary?.signal("SIGKILL");
    });
    await mongo.revive();
  });

  it("survive a primary that stops answering", { timeout }, async () => {
    const [primary] = await findMembers(mongo);
    await createThrough(mongo, async () => {
      primary?.signal("SIGSTOP");
      setTimeout(() => primary?.signal("SIGCONT"), 12_000);
    });
    primary?.signal("SIGCONT");
  });

  it("survive a step-down", { timeout }, async () => {
    await createThrough(mongo, async () => {
      const client = await MongoClient.connect(mongo.url());
      await client
        .db("admin")
        .command({ replSetStepDown: 5, force: true })
        .catch(() => {});
      await client.close();
    });
  });

  it("survive a majority that cannot be reached for a while", { timeout }, async () => {
    const [, ...secondaries] = await findMembers(mongo);
    await createThrough(mongo, async () => {
      for (const each of secondaries) each.signal("SIGSTOP");
      setTimeout(() => {
        for (const each of secondaries) each.signal("SIGCONT");
      }, 6_000);
    });
    for (const each of secondaries) each.signal("SIGCONT");
  });

  it("survive a restart of all members", { timeout }, async () => {
    await findMembers(mongo);
    await createThrough(mongo, async () => {
      for (const each of mongo.members()) each.signal("SIGKILL");
      await delay(500);
      await mongo.revive();
    });
  });

  it("are not acknowledged without a majority", async () => {
    const [, ...secondaries] = await findMembers(mongo);
    const service = await startService({ DATABASE_URL: mongo.url(), REQUEST_TIMEOUT: "3s" });
    const client = grpcClient(service);
    const first = await client.createInvestor(aCreate());
    for (const each of secondaries) each.signal("SIGSTOP");
    const request = aCreate({ requestId: v7() });
    const start = performance.now();
    expect(await failureOf(client.createInvestor(request))).toMatchObject({
      code: "Unavailable",
      hasRetryDelay: true,
    });
    expect(performance.now() - start).toBeLessThan(4_000);
    for (const each of secondaries) each.signal("SIGCONT");
    const again = await waitFor(() => client.createInvestor(request).catch(() => undefined));
    expect(await client.getInvestor({ id: again.id })).toEqual(again);
    expect((await client.listInvestors({})).investors).toHaveLength(2);
    expect(await client.getInvestor({ id: first.id })).toEqual(first);
  });
});

await describeWithMongo("an answer that is lost", "standalone", (mongo) => {
  it("is healed by the store itself: stored once, and told so", async () => {
    const [server] = mongo.members();
    const proxy = await startProxy(server?.port ?? 0);
    const url = new URL(mongo.url());
    url.port = String(proxy.port);
    const service = await startService({ DATABASE_URL: String(url) });
    const client = grpcClient(service);
    await client.createInvestor(aCreate());
    for (const requestId of [undefined, v7()]) {
      const lost = proxy.loseAnswerTo("Ada lost");
      const request = aCreate({ firstName: "Ada lost", ...(requestId && { requestId }) });
      const investor = await client.createInvestor(request);
      await lost;
      expect(await client.getInvestor({ id: investor.id })).toEqual(investor);
    }
    expect((await client.listInvestors({})).investors).toHaveLength(3);
  });
});

await describeWithMongo("no server at all", "standalone", () => {
  it("is told at the start, and the service comes up once there is one", async () => {
    const spare = await MongoMemoryServer.create();
    const port = spare.instanceInfo?.port ?? 0;
    await spare.stop({ doCleanup: false });
    const service = await startService({
      DATABASE_URL: `mongodb://user:s3cret@127.0.0.1:${port}/test?authSource=admin`,
      REQUEST_TIMEOUT: "4s",
    });
    const isReady = async () =>
      (await fetch(`http://127.0.0.1:${service.httpPort}/readyz`)).status === 200;
    expect(await isReady()).toBe(false);
    const start = performance.now();
    const failure = await failureOf(grpcClient(service).createInvestor(aCreate()));
    expect(failure).toMatchObject({ code: "Unavailable", reason: "STORE_UNAVAILABLE" });
    expect(performance.now() - start).toBeLessThan(4_000);
    expect(service.output()).toContain("the store is not ready");
    const told = /"reason":"STORE_UNAVAILABLE".*"cause":"[^"]*ECONNREFUSED/;
    await waitFor(async () => told.test(service.output()));
    expect(service.output()).not.toContain("s3cret");
  });

  it.for(["1500ms", "400ms"])(
    "is told in time, and as nothing written, if calls may take %s",
    async (requestTimeout) => {
      const service = await startService({
        DATABASE_URL: "mongodb://127.0.0.1:9/",
        REQUEST_TIMEOUT: requestTimeout,
      });
      const client = grpcClient(service);
      const calls = [
        ...Array.from({ length: 20 }, () => client.createInvestor(aCreate())),
        ...Array.from({ length: 20 }, () => client.getInvestor({ id: v7() })),
        client.listInvestors({}),
      ];
      for (const failure of await Promise.all(calls.map(failureOf))) {
        expect(failure).toMatchObject({ reason: "STORE_UNAVAILABLE" });
      }
    },
  );

  it("is over when one starts", { timeout: 90_000 }, async () => {
    const server = await MongoMemoryServer.create({
      instance: { storageEngine: "wiredTiger" },
    });
    onTestFinished(async () => void (await server.stop()));
    const url = server.getUri("test");
    await server.stop({ doCleanup: false });
    const service = await startService({ DATABASE_URL: url });
    const isReady = async () =>
      (await fetch(`http://127.0.0.1:${service.httpPort}/readyz`)).status === 200;
    expect(await isReady()).toBe(false);
    await server.start(true);
    await waitFor(isReady);
    await grpcClient(service).createInvestor(aCreate());
  });
});

await describeWithMongo("a document that another program wrote", "set of one", (mongo) => {
  it.each([
    ["a number for a text", { zipCode: 5 }],
    ["a field missing", { city: undefined }],
    ["another type", { type: "fund" }],
  ])("fails what reads it, and nothing else: %s", async (_, change) => {
    const url = mongo.url();
    const service = await startService({ DATABASE_URL: url });
    const client = grpcClient(service);
    const { id } = await client.createInvestor(aCreate());
    const database = await MongoClient.connect(url, { ignoreUndefined: true });
    onTestFinished(() => database.close());
    const investors = database.db().collection<{ _id: UUID }>("investors");
    const _id = new UUID();
    await investors.insertOne({ ...(await investors.findOne({})), ...change, _id });
    const calls = [client.getInvestor({ id: _id.toString() }), client.listInvestors({})];
    for (const failure of await Promise.all(calls.map(failureOf))) {
      expect(failure.code).toBe("Internal");
    }
    expect(await client.getInvestor({ id })).toMatchObject({ id });
  });
});
