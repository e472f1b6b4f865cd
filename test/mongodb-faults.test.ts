import { createServer } from "node:net";
import { UUID } from "mongodb";
import { expect, it } from "vitest";
import { copy, makeSqlite } from "./support/copying.ts";
import { failureOf } from "./support/errors.ts";
import { temporaryFolder } from "./support/folder.ts";
import {
  connectTo,
  describeWithMongo,
  failCommands,
  startProxy,
  startServer,
} from "./support/mongodb.ts";
import { aCreate } from "./support/records.ts";
import { ask, grpcClient, preload, startService, waitFor } from "./support/service.ts";
import { listen } from "./support/tcp.ts";

describeWithMongo("a MongoDB", "standalone", (mongo) => {
  it("with a document that another program damaged fails the calls that read it, and no other", async () => {
    const url = mongo.url();
    const service = await startService({ DATABASE_URL: url, REQUEST_TIMEOUT: "10m" });
    const client = grpcClient(service);
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
    const { reason } = await failureOf(client.createInvestor(aCreate()));
    expect(reason).toBe("STORE_UNAVAILABLE");
    expect(service.output()).toContain("the store is not ready");
    const cause = /"reason":"STORE_UNAVAILABLE".*"cause":"[^"]*ECONNREFUSED/;
    await expect.poll(service.output).toMatch(cause);
    await server.start(true);
    await waitFor(isReady);
    await client.createInvestor(aCreate());
  });

  it("that leaves inserts of a copy open gets them again, however long the copy has run", async () => {
    const folder = temporaryFolder();
    await makeSqlite(folder, "a.db", 3);
    const url = mongo.url();
    const writeConcernError = { code: 64, errmsg: "waiting for replication timed out" };
    // The first is one that looks whether the server keeps a journal.
    await failCommands(await connectTo(url))({ times: 2 }, { writeConcernError });
    const anHourLater = preload(`
      const now = performance.now.bind(performance);
      performance.now = () => now() + 3_600_000;`);
    const env = { NODE_OPTIONS: anHourLater };
    const { code, told } = await copy(["sqlite:a.db", url], { folder, env });
    expect(told).toMatch(/^copied 3 records, and found 0 already there, /);
    expect(code).toBe(0);
  });

  it("whose reply drips holds up no other get beyond its deadline", async () => {
    let isDripping = false;
    const port = await startProxy(mongo, (caller, server) => {
      caller.pipe(server);
      const waiting: Buffer[] = [];
      server.on("data", (chunk: Buffer) => {
        // Replies to lookups have the record; the first of them drips, and its connection for ever.
        if (isDripping && waiting.length === 0 && chunk.includes("lastName")) {
          isDripping = false;
          const timer = setInterval(() => {
            const [first] = waiting;
            if (!first) return;
            caller.write(first.subarray(0, 1));
            waiting[0] = first.subarray(1);
          }, 200);
          caller.once("close", () => clearInterval(timer));
          waiting.push(chunk);
        } else if (waiting.length === 0) caller.write(chunk);
      });
    });
    const env = { DATABASE_URL: `mongodb://127.0.0.1:${port}/drip`, REQUEST_TIMEOUT: "4s" };
    const client = grpcClient(await startService(env));
    const { id } = await client.createInvestor(aCreate());
    isDripping = true;
    const gets = [client.getInvestor({ id })];
    await waitFor(() => !isDripping);
    for (let i = 0; i < 10; i += 1) gets.push(client.getInvestor({ id }));
    for (const got of await Promise.all(gets)) expect(got.id).toBe(id);
  });

  it("that does not reply makes the service unready", async () => {
    const port = await listen(createServer());
    const env = { DATABASE_URL: `mongodb://127.0.0.1:${port}/`, REQUEST_TIMEOUT: "60s" };
    const { output } = await startService(env);
    expect(output()).toMatch(/"message":"no reply within 5000 ms".*"the store is not ready/);
  });
});
