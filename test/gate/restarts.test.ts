// The service dies under callers that have no code to repeat a call.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { PassThrough } from "node:stream";
import { v7 } from "uuid";
import { expect, it, type TestOptions } from "vitest";
import type { InvestorClient } from "../../client/src/client.ts";
import {
  buildGo,
  type Callers,
  findPythonCallers,
  startCallers,
  toLine,
} from "../support/callers/callers.ts";
import { root } from "../support/clone.ts";
import { temporaryFile, temporaryFolder } from "../support/folder.ts";
import { investorClients } from "../support/investor-clients.ts";
import { listAll } from "../support/pages.ts";
import { aCreate, aNew } from "../support/records.ts";
import {
  end,
  grpcClient,
  lockDatabase,
  metric,
  type Service,
  startService,
  untilStill,
} from "../support/service.ts";
import { needs } from "../support/tools.ts";

const recordsOfEach = 100;

/** The callers of each language, by the commands that start them. */
const languages: [string, TestOptions, () => string[] | Promise<string[]>][] = [
  ["Go", needs("Go"), () => buildGo(temporaryFolder())],
  ["Python", needs("Python"), findPythonCallers],
];

/** Callers in this process, by the client of the package. */
function startClient(client: InvestorClient): Callers {
  const created: string[] = [];
  const failures: string[] = [];
  const input = new PassThrough();
  const call = async () => {
    const { id } = await client.createInvestor(aNew());
    created.push((await client.getInvestor({ id })).id);
  };
  async function callAll(): Promise<void> {
    const calls: Promise<unknown>[] = [];
    for await (const _ of createInterface(input)) {
      calls.push(call().catch((error) => failures.push(String(error))));
    }
    await Promise.all(calls);
  }
  return { input, created, failures, finished: callAll() };
}

/**
 * Asks each caller for its records, while the service is killed and started again.
 *
 * @param amidReplies whether it dies while it replies, or else while all calls wait for it
 */
async function killAmid(
  service: Service,
  all: Callers[],
  toRequest: () => string,
  amidReplies: boolean,
): Promise<Service> {
  const ask = () => {
    for (const { input } of all) {
      for (let i = 0; i < recordsOfEach / 2; i += 1) input.write(toRequest());
    }
  };
  ask();
  // Every caller knows the service, then some of its calls wait for it.
  for (const { created, failures } of all) {
    await expect.poll(() => created.length + failures.length).toBeGreaterThan(0);
  }
  const release = amidReplies ? undefined : lockDatabase(service);
  ask();
  if (release) {
    const inFlight = () => metric(service, "investor_records_rpc_server_calls_in_flight");
    await expect.poll(inFlight).toBeGreaterThanOrEqual(16 * all.length);
    await untilStill(() => all.map(({ created }) => created.length).join());
  }
  await end(service, "SIGKILL");
  release?.();
  return startService({ PORT: String(service.port) }, service.folder);
}

/** Expects that every create was acknowledged, and its record stored once. */
async function expectAllStored(service: Service, all: Callers[]): Promise<void> {
  for (const { input, finished, failures, created } of all) {
    input.end();
    await finished;
    expect(failures).toEqual([]);
    expect(created).toHaveLength(recordsOfEach);
  }
  const stored = await listAll(grpcClient(service));
  expect(stored.map(({ id }) => id)).toEqual(all.flatMap(({ created }) => created).toSorted());
}

it("every create of the client, over each transport, is acknowledged and stored once", async () => {
  const first = await startService();
  // A restart takes longer than half a minute where much else runs.
  const clients = Object.values(investorClients(first, { timeoutMs: 300_000, retries: 50 }));
  const all = clients.map(startClient);
  const service = await killAmid(first, all, () => "create\n", true);
  await expectAllStored(service, all);
});

for (const [language, options, prepare] of languages) {
  it(`each create by request id in ${language} is stored, and none twice`, options, async () => {
    const command = await prepare();
    const by = ({ port }: Service, config: string) => {
      const text = readFileSync(join(root, "proto/investor/v1", config), "utf8");
      const configFile = temporaryFile(text.replaceAll('"30s"', '"300s"'));
      return startCallers([...command, "grpc", `127.0.0.1:${port}`, configFile, ""]);
    };
    const first = await startService();
    // gRPC repeats no call whose reply has begun, so that none is cut off here.
    const repeating = by(first, "investor_grpc_service_config_with_request_ids.json");
    const toRequest = () => toLine(aCreate({ requestId: v7() }));
    const service = await killAmid(first, [repeating], toRequest, false);
    await expectAllStored(service, [repeating]);

    const other = await startService();
    const careful = by(other, "investor_grpc_service_config.json");
    const last = await killAmid(other, [careful], () => toLine(aCreate()), true);
    careful.input.end();
    await careful.finished;
    const stored = await listAll(grpcClient(last));
    expect(new Set(stored.map(({ firstName }) => firstName)).size).toBe(stored.length);
    expect(stored.map(({ id }) => id)).toEqual(expect.arrayContaining(careful.created));
  });
}
