import { execFileSync } from "node:child_process";
import { mkdirSync, statSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { v7 } from "uuid";
import { expect, it } from "vitest";
import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import { root } from "../support/clone.ts";
import { sharedFolder, temporaryFolder } from "../support/folder.ts";
import { describeWithMongo } from "../support/mongodb.ts";
import { aCreate, everyText } from "../support/records.ts";
import { end, grpcClient, type Service, startService } from "../support/service.ts";
import { needs } from "../support/tools.ts";

const parent = sharedFolder();

/** Puts the sources of a commit, the last of a version, in a folder; returns its program. */
function unpack(commit: string): string {
  const source = join(parent, commit);
  mkdirSync(source);
  execFileSync("sh", ["-c", `git archive ${commit} | tar -x -C "$0"`, source], { cwd: root });
  symlinkSync(join(root, "node_modules"), join(source, "node_modules"));
  return join(source, "src/bin.ts");
}

/** Starts an older version, which has two ports; the first is for gRPC. */
const startOlder = (program: string, folder: string, env = {}) =>
  startService({ GRPC_PORT: "0", HTTP_PORT: "0", ...env }, folder, program);

/** A request with every text, which older versions require, and which is not sent if it is empty. */
const aNewCreate = () => aCreate({ ...everyText, requestId: v7() });

/** A request, and the record that was acknowledged. */
type Created = { request: ReturnType<typeof aCreate>; investor: Investor };

/** Kills a service while callers create records. */
async function createAndKill(service: Service): Promise<Created[]> {
  const client = grpcClient(service);
  const created: Created[] = [];
  const callers = Array.from({ length: 8 }, async () => {
    for (;;) {
      const request = aNewCreate();
      created.push({ request, investor: await client.createInvestor(request) });
      if (created.length >= 100) service.child.kill("SIGKILL");
    }
  });
  await Promise.allSettled(callers);
  expect(await service.exited).toBe("SIGKILL");
  return created;
}

/** That a service has the records, and knows their requests. */
async function expectServed(service: Service, created: Created[]): Promise<void> {
  const client = grpcClient(service);
  const { investors, nextPageToken } = await client.listInvestors({ pageSize: 1_000 });
  expect(nextPageToken).toBe("");
  const found = new Map(investors.map((investor) => [investor.id, investor]));
  const acknowledged = created.map(({ investor }) => investor);
  expect(acknowledged.map(({ id }) => found.get(id))).toEqual(acknowledged);
  const repeats = created.map(({ request }) => client.createInvestor(request));
  expect(await Promise.all(repeats)).toEqual(acknowledged);
}

it("SQLite: 0.5.0, this version and back, each after a kill", needs("history"), async () => {
  const program = unpack("30701ab");
  const folder = temporaryFolder();
  const all = await createAndKill(await startOlder(program, folder));
  expect(statSync(join(folder, "data/investors.db-wal")).size).toBeGreaterThan(0);
  const upgraded = await startService({}, folder);
  await expectServed(upgraded, all);
  all.push(...(await createAndKill(upgraded)));
  const downgraded = await startOlder(program, folder);
  await expectServed(downgraded, all);
  all.push(...(await createAndKill(downgraded)));
  const stopped = await startService({}, folder);
  await expectServed(stopped, all);
  expect(await end(stopped)).toBe(0);
});

describeWithMongo("MongoDB", "set of one", (mongo) => {
  it(
    "0.2.0 and this version, side by side and after a kill of either",
    needs("history"),
    async () => {
      const program = unpack("4c92f4d");
      const env = { DATABASE_URL: mongo.url() };
      const startOld = () => startOlder(program, temporaryFolder(), env);
      const startCurrent = () => startService(env);
      const [older, newer] = [await startOld(), await startCurrent()];
      const request = aNewCreate();
      const [investor, same] = await Promise.all(
        [older, newer].map((service) => grpcClient(service).createInvestor(request)),
      );
      expect(same).toEqual(investor);

      const all = await createAndKill(older);
      await expectServed(newer, all);
      const again = await startOld();
      all.push(...(await createAndKill(newer)));
      await expectServed(again, all);
      await expectServed(await startCurrent(), all);
    },
  );
});
