import { execFileSync } from "node:child_process";
import { rmSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { StoreUnavailableError } from "../../src/store/store.ts";
import { copy, openSqlite, rowsOf } from "../support/copying.ts";
import { failureOf } from "../support/errors.ts";
import { temporaryDisk, temporaryFolder } from "../support/folder.ts";
import { listAll } from "../support/pages.ts";
import { aCreate, anInvestor, largest } from "../support/records.ts";
import {
  end,
  grpcClient,
  hasEnded,
  metric,
  run,
  startService,
  untilWritten,
} from "../support/service.ts";
import { needs } from "../support/tools.ts";
import { prepareDisks } from "./faults/failing-disk.ts";

/** A size that the WAL passes only if it is not brought into the file, in bytes. */
const largeWal = 8 * 1024 ** 2;

describe("where a disk fails", needs("cc"), () => {
  const createDisk = prepareDisks();

  it.each(["EIO", "ENOSPC"])(
    "a service takes creates while its WAL can be written, says so, and ends with 1: %s",
    async (error) => {
      const { data, env, folder, setRules } = createDisk();
      const sizeOfWal = () => statSync(join(data, "investors.db-wal")).size;
      const service = await startService(env, folder);
      setRules(`write .db 1 ${error}`);
      let count = 0;
      const fillWal = async () => {
        const client = grpcClient(service);
        for (; sizeOfWal() < largeWal; count += 1) await client.createInvestor(aCreate(largest));
      };
      await Promise.all(Array.from({ length: 16 }, fillWal));
      expect(await metric(service, "investor_records_ready")).toBe(1);
      expect(await metric(service, "investor_records_store_writable")).toBe(1);
      expect(await end(service)).toBe(1);
      const said = /^{"level":40.*the WAL of .* cannot be checkpointed/gm;
      expect(service.output().match(said)?.length).toBe(1);
      expect(service.output()).toContain("stopped, and left its latest records in");
      // It starts as it has run, and is over when the disk is well.
      const next = await startService(env, folder);
      expect(await listAll(grpcClient(next))).toHaveLength(count);
      expect(next.output()).toMatch(said);
      setRules("");
      expect(await end(next)).toBe(0);
      expect(sizeOfWal).toThrow("ENOENT");
    },
  );

  // Another program holds them, or the file system has no locks.
  it.each(["EAGAIN", "EIO"])(
    "a service that can take no locks on the index of its WAL ends and says so, and so does a start: %s",
    async (error) => {
      const { folder, env, setRules } = createDisk();
      const service = await startService(env, folder);
      const client = grpcClient(service);
      const { id } = await client.createInvestor(aCreate());
      setRules(`lock -shm 1 ${error}`);
      const calls = Array.from({ length: 8 }, () => failureOf(client.getInvestor({ id })));
      // SQLite itself waits for ten seconds, in which nothing else has a turn, but only once.
      const start = performance.now();
      for (const { reason } of await Promise.all(calls)) expect(reason).toBe("STORE_UNAVAILABLE");
      expect(await service.exited).toBe(1);
      expect(performance.now() - start).toBeLessThan(20_000);
      const next = run([], env, folder);
      expect(await next.exited).toBe(1);
      for (const { output } of [service, next])
        expect(output()).toMatch(/"level":60.*its -shm cannot be locked/);
    },
  );

  it.each([
    ["read .db =1 EIO", "disk I/O error"],
    ["read .db 1 EIO", "disk I/O error"],
    ["read -wal 1 EIO", "its disk cannot be read"],
    ["write -wal 1 EDQUOT", "system error -122"],
    ["open .db 1 EMFILE", "read-only mounts, inodes and open files"],
    ["open -wal 1 EIO", "cannot be opened or written"],
    ["sync -wal 1 EIO", "EIO: i/o error"],
  ])(
    "what keeps the service or a copy from starting is named as what it is: %s",
    async (rule, why) => {
      const { folder, env, setRules } = createDisk();
      const killed = await startService(env, folder);
      await grpcClient(killed).createInvestor(aCreate());
      await end(killed, "SIGKILL");
      setRules(rule);
      const service = run([], env, folder);
      const copied = await copy(["sqlite:data/investors.db", "sqlite:other.db"], { folder, env });
      const told = [copied.told, copied.code === 1];
      await Promise.race([service.exited, untilWritten(service, "serving")]);
      for (const [text, failed] of [told, [service.output(), hasEnded(service.child)]]) {
        if (failed) expect(text).toContain(why);
        expect(text).not.toContain("file is not a database");
      }
    },
  );
});

it("a disk that does not report its size has the WAL of a large one", needs("cc"), async () => {
  const folder = temporaryFolder();
  const library = join(folder, "statfs.so");
  const input = `
    #include <sys/vfs.h>
    int statfs64(const char *path, struct statfs64 *result) {
      *result = (struct statfs64){ .f_bsize = path ? 4096 : 0 };
      return 0;
    }`;
  execFileSync("cc", ["-shared", "-fPIC", "-w", "-D_GNU_SOURCE", "-x", "c", "-o", library, "-"], {
    input,
  });
  const service = await startService({ LD_PRELOAD: library }, folder);
  const client = grpcClient(service);
  for (let i = 0; i < 50; i += 1) await client.createInvestor(aCreate());
  expect(statSync(join(folder, "data/investors.db-wal")).size).toBeGreaterThan(50 * 4_096);
});

it(
  "a small disk holds mostly records; once it is full, they can be read, also by a new start",
  needs("mount"),
  async () => {
    const folder = temporaryDisk(join(temporaryFolder(), "data"), 3 * 1024 ** 2);
    const ballast = join(folder, "ballast");
    writeFileSync(ballast, Buffer.alloc(2 * 1024 ** 2));
    const path = join(folder, "investors.db");
    let store = await openSqlite(path);
    let count = 0;
    const fill = async () => {
      for (; ; count += 1) await store.insert(anInvestor());
    };
    await expect(fill()).rejects.toThrow(StoreUnavailableError);
    expect(count).toBeGreaterThan(2_000);
    await expect(store.close()).rejects.toThrow("left its latest records in");
    store = await openSqlite(path);
    expect(await store.list({ limit: 10_000 })).toHaveLength(count);
    await expect(store.insert(anInvestor())).rejects.toThrow(StoreUnavailableError);
    // It gets room, as another file is deleted, and does not lose it to the WAL.
    rmSync(ballast);
    const before = count;
    await expect(fill()).rejects.toThrow(StoreUnavailableError);
    expect(count - before).toBeGreaterThan(8_000);
    execFileSync("mount", ["-o", "remount,size=8M", folder]);
    await store.insert(anInvestor());
    await store.close();
    expect(rowsOf(folder, "investors.db")).toBe(count + 1);
  },
);
