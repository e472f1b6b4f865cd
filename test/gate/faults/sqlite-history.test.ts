import { rmSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as delay } from "node:timers/promises";
import { describe, expect, it } from "vitest";
import { tableAlone, tableOf } from "../../support/copying.ts";
import type { Random } from "../../support/random.ts";
import { aCreate } from "../../support/records.ts";
import {
  end,
  grpcClient,
  hasEnded,
  lockDatabase,
  run,
  type Service,
  untilWritten,
} from "../../support/service.ts";
import { needs } from "../../support/tools.ts";
import { sendCreate, startCallers } from "./callers.ts";
import { type FaultOf, runEpisodes, timeout, type World } from "./episodes.ts";
import { copyDuring, type FailingDisk, prepareDisks } from "./failing-disk.ts";

const file = "data/investors.db";

/** System calls that can fail, and of which files. */
const operations: Record<string, string[]> = {
  write: ["*", ".db", "-wal", "-shm", ".partial"],
  sync: ["*", ".db", "-wal", "."],
  truncate: ["*", "-wal", "-shm"],
  open: ["*", ".db", "-wal", "-shm", ".partial"],
  look: ["*", ".db", "-wal"],
  unlink: ["*", "-wal", "-shm", ".partial"],
  rename: [".ndjson"],
  lock: ["*", ".db", "-shm"],
  read: ["*", ".db", "-wal", "-shm"],
};
/** What is done only once or twice, where the others are done often. */
const rare = ["truncate", "unlink", "rename"];

/** A rule by which a system call fails once, from some time on, or each third time. */
function aFailure(random: Random): string {
  const [operation, suffixes] = random.pick(Object.entries(operations));
  const number = random.int(1, rare.includes(operation) ? 2 : 12);
  const when = random.pick([`=${number}`, `${number}`, "/3"]);
  const error = random.pick(["EIO", "ENOSPC", "EDQUOT", "EROFS", "EMFILE"]);
  return `${operation} ${random.pick(suffixes)} ${when} ${error}`;
}

/** A service whose disk and process can be made to fail, and its callers. */
interface SqliteWorld extends World {
  readonly disk: FailingDisk;
  /** The service as it runs now. */
  service(): Service;
  /** Starts a process beside those that run on the file; returns it if it does not serve. */
  start(): Promise<Service>;
}

const faults: Record<string, FaultOf<SqliteWorld>> = {
  "kill -9": async ({ service }) => void (await end(service(), "SIGKILL")),
  "a shutdown": async ({ service }) => void (await end(service())),

  async "calls that fail for a while"({ disk, service }, random) {
    disk.setRules(aFailure(random));
    await Promise.race([delay(random.int(100, 1_500)), service().exited]);
  },

  async "a start while calls fail"({ disk, service, start }, random) {
    await end(service(), random.pick(["SIGTERM", "SIGKILL"]));
    disk.setRules(aFailure(random));
    const { child } = await start();
    if (!hasEnded(child)) await delay(random.int(100, 1_500));
  },

  async "a shutdown while calls fail"({ disk, service }, random) {
    disk.setRules(aFailure(random));
    const code = await end(service());
    disk.setRules("");
    // It may be that the WAL could not be deleted; the file is whole without it.
    if (code === 0) expect(tableAlone(disk.folder, file)).toEqual(tableOf(disk.folder, file));
  },

  async "a sync that fails"({ disk, service }, random) {
    disk.setRules(`sync -wal ${random.int(1, 10)} EIO`);
    expect(await service().exited, "it goes on after a sync that failed").toBe(1);
  },

  async "a sync that hangs, and kill -9"({ disk, service }, random) {
    disk.setRules(`sync ${random.pick(["-wal", "-wal", ".db"])} ${random.int(1, 10)} hang`);
    await Promise.race([untilWritten(service(), "the disk fails"), delay(3_000)]);
    // In the longer time, some callers learn that the deadline has passed.
    await delay(random.pick([0, 3_500]));
    await end(service(), "SIGKILL");
  },

  async "a second process"({ service, start }, random) {
    const first = service();
    const second = await start();
    await delay(random.int(200, 1_500));
    await end(random.pick([first, second]), random.pick(["SIGKILL", "SIGTERM"]));
  },

  async "another program that writes"({ service }, random) {
    const unlock = lockDatabase(service());
    await delay(random.pick([200, 1_500, 5_500]));
    unlock();
  },

  /** It also keeps a start waiting, which has to bring the WAL in. */
  async "another program that reads"({ disk, service, recover }, random) {
    const db = new DatabaseSync(join(disk.folder, file), { readOnly: true });
    db.exec("BEGIN");
    db.prepare("SELECT count(*) FROM investors").get();
    const left = delay(random.int(500, 2_000)).then(() => db.close());
    if (random.int(0, 1) === 0) await end(service(), "SIGKILL");
    await recover();
    await left;
  },

  async "a process that is stopped for a while"({ service }, random) {
    const { child } = service();
    child.kill("SIGSTOP");
    await delay(random.pick([100, 1_000, 3_500]));
    child.kill("SIGCONT");
  },
};

/** That a process has ended as it should, if it has, and has not logged without end. */
function expectSane({ child, output }: Service, startedAt: number): void {
  expect([0, 1, null], output()).toContain(child.exitCode);
  const lines = output().match(/^{"level"/gm)?.length ?? 0;
  const seconds = (performance.now() - startedAt) / 1_000;
  expect(lines, output().slice(-5_000)).toBeLessThan(60 + 60 * seconds);
}

describe("callers of a service on SQLite", needs("cc"), () => {
  const createDisk = prepareDisks();

  it(
    "lose nothing that was acknowledged, and have nothing twice, through all faults",
    {
      timeout,
    },
    () => runEpisodes("SQLite history", startWorld, faults),
  );

  /** The service admits fewer calls at once than its callers make. */
  async function startWorld(random: Random): Promise<SqliteWorld> {
    const disk = createDisk();
    const { env, folder } = disk;
    const limits = { DRAIN_TIMEOUT: "5s", MAX_IN_FLIGHT: "32" };
    const services: Service[] = [];
    const startedAt = performance.now();

    async function start(REQUEST_TIMEOUT = "3s"): Promise<Service> {
      const starting = run([], { ...env, ...limits, REQUEST_TIMEOUT }, folder);
      await untilWritten(starting, "serving");
      const [, port] = / on http:\S*:(\d+)/.exec(starting.output()) ?? [];
      const service = { ...starting, port: Number(port), folder };
      if (port !== undefined) services.push(service);
      else expect(await starting.exited, starting.output()).toBe(1);
      return service;
    }

    const service = () => services[0] as Service;

    async function recover(): Promise<void> {
      disk.setRules("");
      for (const each of services) expectSane(each, startedAt);
      services.splice(0, services.length, ...services.filter(({ child }) => !hasEnded(child)));
      if (services.length > 0) return;
      const { child, output } = await start();
      expect(hasEnded(child), output()).toBe(false);
    }

    await start();
    const callers = startCallers(services, random);
    return {
      ...{ callers, disk, service, start, recover },
      async startFresh() {
        disk.setRules("");
        await Promise.all(services.splice(0).map((each) => end(each, "SIGKILL")));
        return start("10m");
      },
      async end() {
        const { history } = callers;
        const client = grpcClient(service());
        // The last ones are in the WAL.
        for (let i = 0; i < 20; i += 1) await sendCreate(history, client, aCreate());
        if (random.int(0, 1) === 0) await end(service(), random.pick(["SIGTERM", "SIGKILL"]));
        const to = random.pick(["data/copy.db", "data/copy.ndjson"]);
        await copyDuring(aFailure(random), disk, file, to);
        await end(service());
        using db = new DatabaseSync(join(folder, file));
        const { integrity_check: check } = db.prepare("PRAGMA integrity_check").get() ?? {};
        const { count } = db.prepare("SELECT count(*) AS count FROM investors").get() ?? {};
        expect({ check, count }).toEqual({ check: "ok", count: history.visible.length });
        rmSync(folder, { recursive: true });
      },
    };
  }
});
