import { once } from "node:events";
import { type AddressInfo, createServer } from "node:net";
import { MongoClient, UUID } from "mongodb";
import { MongoMemoryServer } from "mongodb-memory-server-core";
import { v7 } from "uuid";
import { expect, it, onTestFinished } from "vitest";
import { failureOf } from "./support/errors.ts";
import { describeWithMongo, findMembers, launchTimeout } from "./support/mongodb.ts";
import { startProxy } from "./support/proxy.ts";
import { aCreate } from "./support/records.ts";
import { grpcClient, startService, waitFor } from "./support/service.ts";

await describeWithMongo("a set of three members", "set of three", (mongo) => {
  it("acknowledges no create without a majority, and has it once when it is repeated", async () => {
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
    const { investors } = await waitFor(() => client.listInvestors({}).catch(() => undefined));
    expect(investors).toEqual([first, again]);
  });
});

await describeWithMongo("a MongoDB", "standalone", (mongo) => {
  it("whose reply is lost stores the create once, and its caller does not notice", async () => {
    const [server] = mongo.members();
    const proxy = await startProxy(server?.port ?? 0);
    const url = new URL(mongo.url());
    url.port = String(proxy.port);
    const client = grpcClient(await startService({ DATABASE_URL: String(url) }));
    await client.createInvestor(aCreate());
    for (const changes of [{}, { requestId: v7() }]) {
      const lost = proxy.loseReplyTo("Ada lost");
      const investor = await client.createInvestor(aCreate({ firstName: "Ada lost", ...changes }));
      await lost;
      expect(await client.getInvestor({ id: investor.id })).toEqual(investor);
    }
    expect((await client.listInvestors({})).investors).toHaveLength(3);
  });

  it("with a document that another program damaged fails the calls that read it, and no other", async () => {
    const url = mongo.url();
    const client = grpcClient(await startService({ DATABASE_URL: url }));
    const { id } = await client.createInvestor(aCreate());
    const database = await MongoClient.connect(url, { ignoreUndefined: true });
    onTestFinished(() => database.close());
    const investors = database.db().collection<{ _id: UUID }>("investors");
    const document = await investors.findOne({});
    for (const damage of [{ zipCode: 5 }, { city: undefined }, { type: "fund" }]) {
      const _id = new UUID();
      await investors.insertOne({ ...document, ...damage, _id });
      const calls = [client.getInvestor({ id: _id.toString() }), client.listInvestors({})];
      for (const { code } of await Promise.all(calls.map(failureOf))) expect(code).toBe("Internal");
      await investors.deleteOne({ _id });
    }
    expect(await client.getInvestor({ id })).toMatchObject({ id });
  });

  it("that is down at the start makes the service unready until it is up", async () => {
    const instance = { storageEngine: "wiredTiger", launchTimeout } as const;
    const server = await MongoMemoryServer.create({ instance });
    onTestFinished(async () => void (await server.stop()));
    const url = server.getUri("test");
    await server.stop({ doCleanup: false });
    const service = await startService({ DATABASE_URL: url, REQUEST_TIMEOUT: "4s" });
    const isReady = async () =>
      (await fetch(`http://127.0.0.1:${service.httpPort}/readyz`)).status === 200;
    expect(await isReady()).toBe(false);
    const client = grpcClient(service);
    expect(await failureOf(client.createInvestor(aCreate()))).toMatchObject({
      code: "Unavailable",
      reason: "STORE_UNAVAILABLE",
    });
    expect(service.output()).toContain("the store is not ready");
    await expect
      .poll(() => service.output())
      .toMatch(/"reason":"STORE_UNAVAILABLE".*"cause":"[^"]*ECONNREFUSED/);
    await server.start(true);
    await waitFor(isReady);
    await client.createInvestor(aCreate());
  });

  it("that does not reply makes the service unready", async () => {
    const silent = createServer().listen(0, "127.0.0.1");
    await once(silent, "listening");
    onTestFinished(() => void silent.close());
    const { port } = silent.address() as AddressInfo;
    const env = { DATABASE_URL: `mongodb://127.0.0.1:${port}/`, REQUEST_TIMEOUT: "60s" };
    const { output } = await startService(env);
    expect(output()).toMatch(/"message":"no reply within 5000 ms".*"the store is not ready/);
  });
});
