import { resolve } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { Code, ConnectError } from "@connectrpc/connect";
import { v7 } from "uuid";
import { describe, expect, it } from "vitest";
import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import { failureOf } from "../support/errors.ts";
import { temporaryFolder } from "../support/folder.ts";
import { listAll } from "../support/pages.ts";
import { aCreate } from "../support/records.ts";
import { grpcClient, startService } from "../support/service.ts";

const failingCommit = resolve(import.meta.dirname, "../support/failing-commit.ts");

const rounds = 12;
const callers = 64;

describe("kill -9 in the middle of creates", () => {
  it("loses no acknowledged record, and replays double none", { timeout: 180_000 }, async () => {
    const folder = temporaryFolder();
    const acknowledged = new Map<string, Investor>();
    let unanswered: ReturnType<typeof aCreate>[] = [];
    let requests = 0;

    for (let round = 0; round < rounds; round += 1) {
      const service = await startService({}, folder);
      const clients = Array.from({ length: 4 }, () => grpcClient(service));
      let isAlive = true;
      const create = async (client: (typeof clients)[0] | undefined, request = aCreate()) => {
        try {
          const investor = await client?.createInvestor(request);
          if (investor) acknowledged.set(investor.id, investor);
        } catch (error) {
          expect(ConnectError.from(error).code).not.toBe(Code.Internal);
          unanswered.push(request);
        }
      };
      const replays = unanswered;
      unanswered = [];
      await Promise.all(replays.map((request, i) => create(clients[i % 4], request)));

      const storm = Array.from({ length: callers }, async (_, i) => {
        while (isAlive) {
          requests += 1;
          await create(clients[i % 4], aCreate({ requestId: v7() }));
        }
      });
      await delay(200 + round * 25);
      service.child.kill("SIGKILL");
      isAlive = false;
      await Promise.all(storm);
      await service.exited;
    }

    const client = grpcClient(await startService({}, folder));
    for (const request of unanswered) {
      const investor = await client.createInvestor(request);
      acknowledged.set(investor.id, investor);
    }
    const all = await listAll(client);
    expect(all).toHaveLength(requests);
    const stored = new Map(all.map((investor) => [investor.id, investor]));
    for (const [id, investor] of acknowledged) expect(stored.get(id)).toEqual(investor);
    expect(stored.size).toBe(requests);
    expect(acknowledged.size).toBe(requests);
    expect(requests).toBeGreaterThan(rounds * callers);
  });
});

describe("a writer that cannot go on", () => {
  it.each(["disk I/O error", "thread ends"])(
    "(%s) tells its callers that the outcome is unknown, and ends the process",
    async (fault) => {
      const service = await startService({
        NODE_OPTIONS: `--import=${failingCommit}`,
        FAILING_COMMIT: fault,
      });
      const client = grpcClient(service);
      const stored = [
        await client.createInvestor(aCreate()),
        await client.createInvestor(aCreate()),
      ];
      const requestId = v7();
      expect(await failureOf(client.createInvestor(aCreate({ requestId })))).toMatchObject({
        code: "Unavailable",
        reason: "OUTCOME_UNKNOWN",
        hasRetryDelay: true,
      });
      expect(await service.exited).toBe(1);
      expect(service.output()).toMatch(/"level":60.*the thread that writes to .* died/);
      const again = grpcClient(await startService({}, service.folder));
      const { investors } = await again.listInvestors({});
      expect(investors).toEqual(expect.arrayContaining(stored));
    },
  );

  it("tells a caller without a request id which id to look up, and not to repeat", async () => {
    const service = await startService({ NODE_OPTIONS: `--import=${failingCommit}` });
    const client = grpcClient(service);
    for (let i = 0; i < 2; i += 1) await client.createInvestor(aCreate());
    const failure = await failureOf(client.createInvestor(aCreate()));
    expect(failure).toMatchObject({
      code: "Unknown",
      reason: "OUTCOME_UNKNOWN",
      hasRetryDelay: false,
    });
    expect(failure.metadata?.id).toMatch(/^[0-9a-f-]{36}$/);
  });
});
