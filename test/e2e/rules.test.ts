import { Code, type ConnectError } from "@connectrpc/connect";
import { describe, expect, it } from "vitest";
import { failureOf } from "../support/errors.ts";
import { describeWithMongo } from "../support/mongodb.ts";
import { aCreate } from "../support/records.ts";
import { grpcClient, lockDatabase, startService } from "../support/service.ts";
import { describeRules } from "./rules.ts";

describeRules("on SQLite", () => ({}));

await describeWithMongo("on MongoDB", "set of three", (mongo) => {
  describeRules("three members", () => ({ DATABASE_URL: mongo.url() }));
});

describe("a deadline", () => {
  it("ends a call that takes longer than the server's limit", async () => {
    const service = await startService({ REQUEST_TIMEOUT: "300ms" });
    const client = grpcClient(service);
    await client.createInvestor(aCreate());
    const release = lockDatabase(service);
    const failure = await failureOf(client.createInvestor(aCreate()));
    expect(failure).toMatchObject({ code: "DeadlineExceeded", reason: "DEADLINE_EXCEEDED" });
    expect(failure.message).toContain("may or may not be stored");
    release();
    await client.createInvestor(aCreate());
  });

  it("of the client counts when it is sooner", async () => {
    const service = await startService();
    const client = grpcClient(service);
    await client.createInvestor(aCreate());
    const release = lockDatabase(service);
    const start = performance.now();
    const call = client.createInvestor(aCreate(), { timeoutMs: 200 });
    await expect(call).rejects.toMatchObject({ code: Code.DeadlineExceeded } as ConnectError);
    expect(performance.now() - start).toBeLessThan(4_000);
    release();
  });
});

describe("a locked database", () => {
  it("makes creates fail as not written, and no earlier record is lost", async () => {
    const service = await startService();
    const client = grpcClient(service);
    const first = await client.createInvestor(aCreate());
    const release = lockDatabase(service);
    const failure = await failureOf(client.createInvestor(aCreate()));
    expect(failure).toMatchObject({
      code: "Unavailable",
      reason: "STORE_UNAVAILABLE",
      hasRetryDelay: true,
    });
    release();
    expect((await client.listInvestors({})).investors).toEqual([first]);
  });
});
