import { once } from "node:events";
import { type AddressInfo, createServer } from "node:net";
import { MongoClient, UUID } from "mongodb";
import { MongoMemoryServer } from "mongodb-memory-server-core";
import { v7 } from "uuid";
import { expect, it, onTestFinished } from "vitest";
import { failureOf } from "../support/errors.ts";
import { describeWithMongo, findMembers } from "../support/mongodb.ts";
import { startProxy } from "../support/proxy.ts";
import { aCreate } from "../support/records.ts";
import { grpcClient, startService, waitFor } from "../support/service.ts";

await describeWithMongo("creates on three members", "set of three", (mongo) => {
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
    expect(performance.now() - start).toBeLessThan(6_000);
    for (const each of secondaries) each.signal("SIGCONT");
    const again = await waitFor(() => client.createInvestor(request).catch(() => undefined));
    expect(await client.getInvestor({ id: again.id })).toEqual(again);
    const { investors } = await waitFor(() => client.listInvestors({}).catch(() => undefined));
    expect(investors).toHaveLength(2);
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
      const lost = proxy.loseReplyTo("Ada lost");
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

  it("is told when something else listens, which does not reply", async () => {
    const silent = createServer().listen(0, "127.0.0.1");
    await once(silent, "listening");
    onTestFinished(() => void silent.close());
    const { port } = silent.address() as AddressInfo;
    const service = await startService({
      DATABASE_URL: `mongodb://127.0.0.1:${port}/`,
      REQUEST_TIMEOUT: "60s",
    });
    expect(service.output()).toMatch(
      /"message":"no reply within 5000 ms".*"the store is not ready/,
    );
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
