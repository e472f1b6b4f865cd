import { createServer } from "node:net";
import { UUID } from "mongodb";
import { expect, it } from "vitest";
import { failureOf } from "./support/errors.ts";
import { connectTo, describeWithMongo, startServer } from "./support/mongodb.ts";
import { aCreate } from "./support/records.ts";
import { ask, grpcClient, startService, waitFor } from "./support/service.ts";
import { listen } from "./support/tcp.ts";

describeWithMongo("a MongoDB", "standalone", (mongo) => {
  it("with a document that another program damaged fails the calls that read it, and no other", async () => {
    const url = mongo.url();
    const client = grpcClient(await startService({ DATABASE_URL: url }));
    const { id } = await client.createInvestor(aCreate());
    const database = await connectTo(url, { ignoreUndefined: true });
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
    const server = await startServer();
    const url = server.getUri("test");
    await server.stop({ doCleanup: false });
    const service = await startService({ DATABASE_URL: url, REQUEST_TIMEOUT: "4s" });
    const isReady = async () => (await ask(service, "/readyz")).ok;
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
    const port = await listen(createServer());
    const env = { DATABASE_URL: `mongodb://127.0.0.1:${port}/`, REQUEST_TIMEOUT: "60s" };
    const { output } = await startService(env);
    expect(output()).toMatch(/"message":"no reply within 5000 ms".*"the store is not ready/);
  });
});
