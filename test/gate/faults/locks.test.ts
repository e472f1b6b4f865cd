import { describe, expect, it } from "vitest";
import { failureOf } from "../../support/errors.ts";
import { listAll } from "../../support/pages.ts";
import { aCreate } from "../../support/records.ts";
import { ask, end, grpcClient, startService, waitFor } from "../../support/service.ts";
import { needs } from "../../support/tools.ts";
import { prepareDisks } from "./failing-disk.ts";

describe("where no lock on the index of the WAL can be taken", needs("cc"), () => {
  const createDisk = prepareDisks();
  const rule = "lock -shm 1 EAGAIN";

  /** A service with a record, which has met that it is locked out. */
  async function startLockedOut() {
    const disk = createDisk();
    const service = await startService(disk.env, disk.folder);
    const client = grpcClient(service);
    const { id } = await client.createInvestor(aCreate());
    const get = () => client.getInvestor({ id });
    disk.setRules(rule);
    // SQLite itself waits for ten seconds in the first read, in which nothing else has a turn.
    const start = performance.now();
    const gets = Array.from({ length: 8 }, () => failureOf(get()));
    for (const { reason } of await Promise.all(gets)) expect(reason).toBe("STORE_UNAVAILABLE");
    expect(performance.now() - start).toBeLessThan(30_000);
    return { ...disk, service, client, get };
  }

  it("calls fail at once, probes are answered, and all is well when it is over", async () => {
    const { client, get, service, setRules } = await startLockedOut();
    const start = performance.now();
    for (let i = 0; i < 20; i += 1) {
      expect((await ask(service, "/healthz")).ok).toBe(true);
      for (const call of [get(), client.createInvestor(aCreate()), listAll(client)]) {
        expect((await failureOf(call)).reason).toBe("STORE_UNAVAILABLE");
      }
    }
    // Not even one of the waits of SQLite.
    expect(performance.now() - start).toBeLessThan(9_000);
    setRules("");
    await waitFor(() =>
      get().then(
        () => true,
        () => false,
      ),
    );
    await client.createInvestor(aCreate());
    expect(await end(service)).toBe(0);
  });

  it("the process ends and says so if that lasts", async () => {
    const { service } = await startLockedOut();
    expect(await service.exited).toBe(1);
    expect(service.output()).toMatch(
      /"level":60.*could not be read for 30 s: another process holds its locks/,
    );
  });
});
