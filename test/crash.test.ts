import { rmSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { Code, ConnectError } from "@connectrpc/connect";
import { v7 } from "uuid";
import { describe, expect, it } from "vitest";
import type { Investor } from "../gen/investor/v1/investor_pb.js";
import { prepareDisks } from "./gate/faults/failing-disk.ts";
import { failureOf } from "./support/errors.ts";
import { temporaryFolder } from "./support/folder.ts";
import { listAll } from "./support/pages.ts";
import { aCreate } from "./support/records.ts";
import { end, grpcClient, startService } from "./support/service.ts";
import { needs } from "./support/tools.ts";

it("kill -9 during creates loses no acknowledged record, and repeats store none twice", async () => {
  const folder = temporaryFolder();
  const acknowledged = new Map<string, Investor>();
  const unanswered: ReturnType<typeof aCreate>[] = [];
  let requests = 0;
  for (let round = 0; round < 3; round += 1) {
    const service = await startService({}, folder);
    const client = grpcClient(service);
    /** First repeats what failed, then creates more, until the service is gone. */
    const callers = Array.from({ length: 64 }, async () => {
      for (;;) {
        requests += unanswered.length === 0 ? 1 : 0;
        const request = unanswered.pop() ?? aCreate({ requestId: v7() });
        try {
          const investor = await client.createInvestor(request);
          acknowledged.set(investor.id, investor);
        } catch (error) {
          expect(ConnectError.from(error).code).not.toBe(Code.Internal);
          return request;
        }
      }
    });
    await delay(200 + round * 25);
    await end(service, "SIGKILL");
    unanswered.push(...(await Promise.all(callers)));
  }
  const client = grpcClient(await startService({}, folder));
  for (const request of unanswered) {
    const investor = await client.createInvestor(request);
    acknowledged.set(investor.id, investor);
  }
  const stored = await listAll(client);
  expect(stored).toHaveLength(requests);
  expect(new Map(stored.map((investor) => [investor.id, investor]))).toEqual(acknowledged);
});

describe("a sync that fails ends the process", needs("cc"), () => {
  const createDisk = prepareDisks();

  /** Creates two records, and then one whose commit fails. */
  async function failCommit(changes = {}, spoil: (data: string) => void = () => {}) {
    const disk = createDisk();
    const service = await startService(disk.env, disk.folder);
    const client = grpcClient(service);
    const stored = [await client.createInvestor(aCreate()), await client.createInvestor(aCreate())];
    disk.setRules("sync -wal 1 EIO");
    spoil(disk.data);
    const failure = await failureOf(client.createInvestor(aCreate(changes)));
    const exitCode = await service.exited;
    return { disk, stored, failure, exitCode, output: service.output() };
  }

  it.each([
    ["with a request id to repeat", { requestId: v7() }, "Unavailable"],
    ["without one which id to look up, and not to repeat", {}, "Unknown"],
  ])("and tells a caller %s", async (_, changes, code) => {
    const { disk, stored, failure, exitCode, output } = await failCommit(changes);
    const hasRetryDelay = code === "Unavailable";
    expect(failure).toMatchObject({ code, reason: "OUTCOME_UNKNOWN", hasRetryDelay });
    if (code === "Unknown") expect(failure.metadata?.id).toMatch(/^[0-9a-f-]{36}$/);
    expect(exitCode).toBe(1);
    expect(output).toMatch(/"level":60.*the thread that writes to .* died/);
    const again = grpcClient(await startService({}, disk.folder));
    const { investors } = await again.listInvestors({});
    expect(investors).toEqual(expect.arrayContaining(stored));
  });

  it("with the status of files that went away, if that is why it failed", async () => {
    const spoil = (data: string) => rmSync(join(data, "investors.db-shm"));
    const { exitCode, output } = await failCommit({}, spoil);
    expect(exitCode).toBe(3);
    expect(output).toMatch(/"level":60.*was moved, deleted or replaced/);
  });
});
