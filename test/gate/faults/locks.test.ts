import { describe, expect, it } from "vitest";
import { failureOf } from "../../support/errors.ts";
import { aCreate } from "../../support/records.ts";
import { grpcClient, run, startService } from "../../support/service.ts";
import { needs } from "../../support/tools.ts";
import { prepareDisks } from "./failing-disk.ts";

describe("where no lock on the index of the WAL can be taken", needs("cc"), () => {
  const createDisk = prepareDisks();

  // Another program holds it, or the file system has no locks.
  it.each(["EAGAIN", "EIO"])(
    "a service ends and says so, and so does a start: %s",
    async (error) => {
      const disk = createDisk();
      const service = await startService(disk.env, disk.folder);
      const client = grpcClient(service);
      const { id } = await client.createInvestor(aCreate());
      disk.setRules(`lock -shm 1 ${error}`);
      const calls = Array.from({ length: 8 }, () => failureOf(client.getInvestor({ id })));
      // SQLite itself waits for ten seconds, in which nothing else has a turn, but only once.
      const start = performance.now();
      for (const { reason } of await Promise.all(calls)) expect(reason).toBe("STORE_UNAVAILABLE");
      expect(await service.exited).toBe(1);
      expect(performance.now() - start).toBeLessThan(20_000);
      const next = run([], disk.env, disk.folder);
      expect(await next.exited).toBe(1);
      for (const { output } of [service, next]) {
        expect(output()).toMatch(/"level":60.*its -shm cannot be locked/);
      }
    },
  );
});
