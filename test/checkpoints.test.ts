import { statSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { type FailingDisk, prepareDisks } from "./gate/faults/failing-disk.ts";
import { listAll } from "./support/pages.ts";
import { aCreate, largest } from "./support/records.ts";
import { end, grpcClient, metric, type Service, startService } from "./support/service.ts";
import { needs } from "./support/tools.ts";

const failures = "investor_records_sqlite_checkpoint_failures_total";

/** A size that the WAL passes only if it is not brought into the file, in bytes. */
const largeWal = 8 * 1024 ** 2;

describe("where the file cannot be written, but its WAL", needs("cc"), () => {
  const createDisk = prepareDisks();
  let disk: FailingDisk;
  const wal = () => statSync(join(disk.data, "investors.db-wal")).size;
  const start = () => startService(disk.env, disk.folder);

  /** Creates records, many at once, until the WAL is large; returns how many. */
  async function fillWal(service: Service): Promise<number> {
    const client = grpcClient(service);
    let count = 0;
    async function create(): Promise<void> {
      for (; wal() < largeWal; count += 1) await client.createInvestor(aCreate(largest));
    }
    await Promise.all(Array.from({ length: 16 }, create));
    return count;
  }

  it.each(["EIO", "ENOSPC"])(
    "a service takes creates, says so, and ends with 1: %s",
    async (error) => {
      disk = createDisk();
      const service = await start();
      expect(await metric(service, failures)).toBe(0);
      disk.setRules(`write .db 1 ${error}`);
      const count = await fillWal(service);
      expect(await metric(service, failures)).toBeGreaterThan(0);
      expect(await metric(service, "investor_records_ready")).toBe(1);
      expect(await metric(service, "investor_records_store_writable")).toBe(1);
      expect(await end(service)).toBe(1);
      const said = service
        .output()
        .match(/^{"level":40.*the WAL cannot be brought into its file/gm);
      expect(said?.length).toBeGreaterThan(0);
      expect(said?.length).toBeLessThan(10);
      expect(service.output()).toContain("stopped, and left its latest records in");
      // It starts as it has run, and is over when the disk is well.
      const next = await start();
      expect(await listAll(grpcClient(next))).toHaveLength(count);
      expect(next.output()).toMatch(/"level":40.*the WAL of .* cannot be brought into it/);
      disk.setRules("");
      expect(await end(next)).toBe(0);
      expect(wal).toThrow("ENOENT");
    },
  );
});
