import { existsSync } from "node:fs";
import { join, resolve } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { Code, ConnectError } from "@connectrpc/connect";
import { v7 } from "uuid";
import { describe, expect, it } from "vitest";
import type { Investor } from "../gen/investor/v1/investor_pb.js";
import { failureOf } from "./support/errors.ts";
import { temporaryFolder } from "./support/folder.ts";
import { listAll } from "./support/pages.ts";
import { aCreate } from "./support/records.ts";
import { grpcClient, runGroup, startService, waitFor } from "./support/service.ts";

const root = resolve(import.meta.dirname, "..");
const rounds = 8;
const callers = 64;

it("kill -9 during creates loses no acknowledged record, and repeats store none twice", async () => {
  const folder = temporaryFolder();
  const acknowledged = new Map<string, Investor>();
  let unanswered: ReturnType<typeof aCreate>[] = [];
  let requests = 0;
  for (let round = 0; round < rounds; round += 1) {
    const service = await startService({}, folder);
    const clients = Array.from({ length: 4 }, () => grpcClient(service));
    const create = async (i: number, request: ReturnType<typeof aCreate>) => {
      try {
        const investor = await clients[i % 4]?.createInvestor(request);
        if (investor) acknowledged.set(investor.id, investor);
      } catch (error) {
        expect(ConnectError.from(error).code).not.toBe(Code.Internal);
        unanswered.push(request);
      }
    };
    const repeats = unanswered;
    unanswered = [];
    await Promise.all(repeats.map((request, i) => create(i, request)));
    let isAlive = true;
    const storm = Array.from({ length: callers }, async (_, i) => {
      for (; isAlive; requests += 1) await create(i, aCreate({ requestId: v7() }));
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
  const stored = await listAll(client);
  expect(requests).toBeGreaterThan(rounds * callers);
  expect(stored).toHaveLength(requests);
  expect(new Map(stored.map((investor) => [investor.id, investor]))).toEqual(acknowledged);
});

describe("a writer that cannot go on", () => {
  const failingCommit = join(root, "test/support/failing-commit.ts");

  /** Creates two records, and then one whose commit fails. */
  async function failCommit(fault: string, request: ReturnType<typeof aCreate>) {
    const env = { NODE_OPTIONS: `--import=${failingCommit}`, FAILING_COMMIT: fault };
    const service = await startService(env);
    const client = grpcClient(service);
    const stored = [await client.createInvestor(aCreate()), await client.createInvestor(aCreate())];
    const failure = await failureOf(client.createInvestor(request));
    expect(await service.exited).toBe(1);
    expect(service.output()).toMatch(/"level":60.*the thread that writes to .* died/);
    const { investors } = await grpcClient(await startService({}, service.folder)).listInvestors(
      {},
    );
    expect(investors).toEqual(expect.arrayContaining(stored));
    return failure;
  }

  it.each(["disk I/O error", "thread ends"])(
    "(%s) ends the process, and leaves the outcome unknown to callers, who may repeat",
    async (fault) => {
      expect(await failCommit(fault, aCreate({ requestId: v7() }))).toMatchObject({
        code: "Unavailable",
        reason: "OUTCOME_UNKNOWN",
        hasRetryDelay: true,
      });
    },
  );

  it("tells a caller without a request id which id to look up, and not to repeat", async () => {
    expect(await failCommit("disk I/O error", aCreate())).toMatchObject({
      code: "Unknown",
      reason: "OUTCOME_UNKNOWN",
      hasRetryDelay: false,
      metadata: { id: expect.stringMatching(/^[0-9a-f-]{36}$/) },
    });
  });
});

it.runIf(existsSync("/dev/full"))("a log whose disk is full does not end the service", async () => {
  const folder = temporaryFolder();
  // Standard output says nothing, and the ports are chosen as those of a service that is gone.
  const { grpcPort, httpPort, child, exited } = await startService();
  child.kill("SIGTERM");
  await exited;
  const env = { ...process.env, GRPC_PORT: String(grpcPort), HTTP_PORT: String(httpPort) };
  const args = ["-c", `exec "$0" ${join(root, "src/bin.ts")} 2>/dev/full`, process.execPath];
  const service = runGroup("sh", args, { cwd: folder, env });
  const client = grpcClient({ grpcPort });
  await waitFor(() => client.createInvestor(aCreate()).catch(() => undefined));
  for (let i = 0; i < 3; i += 1) service.child.kill("SIGHUP");
  await client.createInvestor(aCreate());
  service.child.kill("SIGTERM");
  expect(await service.exited).toBe(0);
});
