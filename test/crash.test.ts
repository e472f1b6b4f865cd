import { rmSync } from "node:fs";
import { join } from "node:path";
import { v7 } from "uuid";
import { describe, expect, it } from "vitest";
import { prepareDisks } from "./gate/faults/failing-disk.ts";
import { makeSqlite } from "./support/copying.ts";
import { failureOf } from "./support/errors.ts";
import { aCreate } from "./support/records.ts";
import { grpcClient, run, startService } from "./support/service.ts";
import { needs } from "./support/tools.ts";

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

  it.each([
    ["of the WAL, in a start", "-wal 1", "data/investors.db"],
    ["of the folder, in a start", ". 1", "data/investors.db"],
    ["of the folder of a new one, in a start", ". 1", "data/new/investors.db"],
  ])("with status 1: %s", async (_, synced, path) => {
    const { env, folder, setRules } = createDisk();
    await makeSqlite(folder, "data/investors.db", 1);
    setRules(`sync ${synced} EIO`);
    const { exited, output } = run([], { ...env, DATABASE_URL: `sqlite:${path}` }, folder);
    expect(await exited).toBe(1);
    expect(output()).toMatch(/"level":60.*EIO/);
  });

  it("of the folder after a removal, of which a copy may then be left", async () => {
    const { env, folder, setRules } = createDisk();
    const [record] = await makeSqlite(folder, "data/investors.db", 1);
    // After those of the start and of SQLite.
    setRules("sync . 3 EIO");
    const args = ["remove", "sqlite:data/investors.db", record?.id ?? ""];
    const { exited, output } = run(args, env, folder);
    expect(await exited).toBe(1);
    expect(output()).toMatch(/a copy may be left in .*EIO/);
  });

  it("with the status of files that went away, if that is why it failed", async () => {
    const spoil = (data: string) => rmSync(join(data, "investors.db-shm"));
    const { exitCode, output } = await failCommit({}, spoil);
    expect(exitCode).toBe(3);
    expect(output).toMatch(/"level":60.*was moved, deleted or replaced/);
  });
});
