import { rmSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as delay } from "node:timers/promises";
import { describe, expect, it } from "vitest";
import { createRandom, type Random, seedOf } from "../../support/random.ts";
import {
  end,
  hasEnded,
  lockDatabase,
  type Service,
  startService,
  untilWritten,
} from "../../support/service.ts";
import { needs } from "../../support/tools.ts";
import { startCallers } from "./callers.ts";
import { type FaultOf, runEpisodes, timeout, type World } from "./episodes.ts";
import { prepareDisks } from "./failing-disk.ts";

/** A service whose disk and process can be made to fail, and its callers. */
interface SqliteWorld extends World {
  /** The service as it runs now. */
  service(): Service;
  /** Starts a process beside it on the same file. */
  startSecond(): Promise<Service>;
  /** Makes the disk fail by the rules of failing-disk.c. */
  failDisk(rules: string): void;
  readonly file: string;
}

const faults: Record<string, FaultOf<SqliteWorld>> = {
  "kill -9": async ({ service }) => void (await end(service(), "SIGKILL")),
  "a shutdown": async ({ service }) => void (await end(service())),

  async "an error of the disk for a while"({ failDisk, service }, random) {
    const suffix = random.pick(["-wal", "-wal", ".db"]);
    const action = random.pick(["EIO", "ENOSPC"]);
    failDisk(`${random.pick(["write", "truncate"])} ${suffix} ${random.int(1, 20)} ${action}`);
    await Promise.race([delay(random.int(100, 1_500)), service().exited]);
  },

  async "a sync that fails"({ failDisk, service }, random) {
    failDisk(`sync -wal ${random.int(1, 10)} EIO`);
    expect(await service().exited, "it goes on after a sync that failed").toBe(1);
  },

  async "a sync that hangs, and kill -9"({ failDisk, service }, random) {
    failDisk(`sync ${random.pick(["-wal", "-wal", ".db"])} ${random.int(1, 10)} hang`);
    await Promise.race([untilWritten(service(), "the disk fails"), delay(3_000)]);
    // In the longer time, some callers learn that the deadline has passed.
    await delay(random.pick([0, 3_500]));
    await end(service(), "SIGKILL");
  },

  async "a second process"({ service, startSecond }, random) {
    const first = service();
    const second = await startSecond();
    await delay(random.int(200, 1_500));
    await end(random.pick([first, second]), random.pick(["SIGKILL", "SIGTERM"]));
  },

  async "another program that writes"({ service }, random) {
    const unlock = lockDatabase(service());
    await delay(random.pick([200, 1_500, 5_500]));
    unlock();
  },

  /** It also keeps a start waiting, which has to bring the WAL in. */
  async "another program that reads"({ file, service, recover }, random) {
    const db = new DatabaseSync(file, { readOnly: true });
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

describe("callers of a service on SQLite", needs("cc"), () => {
  const createDisk = prepareDisks();

  it("lose nothing that was acknowledged, and have nothing twice, through all faults", {
    timeout,
  }, async () => {
    const random = createRandom(seedOf("SQLite history"));
    await runEpisodes(() => startWorld(random), faults, random);
  });

  /** The service admits fewer calls at once than its callers make. */
  async function startWorld(random: Random): Promise<SqliteWorld> {
    const disk = createDisk();
    const file = join(disk.folder, "data/investors.db");
    const start = (REQUEST_TIMEOUT = "3s") =>
      startService({ ...disk.env, REQUEST_TIMEOUT, MAX_IN_FLIGHT: "32" }, disk.folder);
    const services = [await start()];
    const callers = startCallers(services, random);
    const service = () => services[0] as Service;

    async function recover(): Promise<void> {
      disk.setRules("");
      for (const each of services.filter(({ child }) => hasEnded(child)))
        services.splice(services.indexOf(each), 1);
      if (services.length === 0) services.push(await start());
    }

    return {
      callers,
      file,
      service,
      recover,
      async startSecond() {
        const second = await start();
        services.push(second);
        return second;
      },
      failDisk: disk.setRules,
      async startFresh() {
        await Promise.all(services.map((each) => end(each, "SIGKILL")));
        disk.setRules("");
        services.splice(0, services.length, await start("10m"));
        return service();
      },
      async end() {
        await Promise.all(services.map((each) => end(each)));
        const db = new DatabaseSync(file);
        const { integrity_check: check } = db.prepare("PRAGMA integrity_check").get() ?? {};
        const { count } = db.prepare("SELECT count(*) AS count FROM investors").get() ?? {};
        db.close();
        expect({ check, count }).toEqual({ check: "ok", count: callers.history.visible.length });
        rmSync(disk.folder, { recursive: true });
      },
    };
  }
});
