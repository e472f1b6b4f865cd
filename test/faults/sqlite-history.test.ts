import { mkdirSync, realpathSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as delay } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { temporaryFolder } from "../support/folder.ts";
import { createRandom, type Random, seedOf } from "../support/random.ts";
import { lockDatabase, type Service, startService } from "../support/service.ts";
import { hasTool } from "../support/tools.ts";
import { startCallers } from "./callers.ts";
import { type FaultOf, runEpisodes, type World } from "./episodes.ts";
import { compileRecorder, onDisk, setRules } from "./recorded-disk.ts";

const minutes = Number(process.env.FAULTS_MINUTES ?? 0);
const timeout = minutes * 60_000 + 300_000;

/** A service whose disk and process can be made to fail, and its callers. */
interface SqliteWorld extends World {
  /** The service as it runs now. */
  service(): Service;
  /** Starts a process beside it on the same file. */
  startSecond(): Promise<Service>;
  /** Lets the disk fail by the rules of recorded-disk.c for a time, or until the process ends. */
  failDisk(rules: string, ms: number): Promise<void>;
  readonly file: string;
}

type Fault = FaultOf<SqliteWorld>;

/** By name. */
const faults: Record<string, Fault> = {
  "kill -9": ({ service }) => end(service(), "SIGKILL"),
  "a shutdown": ({ service }) => end(service(), "SIGTERM"),

  async "an error of the disk"({ callers, failDisk }, random) {
    const operation = random.pick(["write", "write", "sync", "truncate"]);
    const action = random.pick(["EIO", "ENOSPC", operation === "write" ? "short" : "EIO"]);
    const suffix = random.pick(["-wal", "-wal", ".db", "*"]);
    const rule = `${operation} ${suffix} ${random.int(1, 20)} ${random.int(0, 5)} ${action}`;
    callers.history.note(rule);
    await failDisk(rule, random.int(100, 1_500));
  },

  "a full disk": ({ failDisk }, random) =>
    failDisk("write * 1 0 ENOSPC\ntruncate * 1 0 ENOSPC", random.int(300, 1_500)),

  "a slow disk": ({ failDisk }, random) =>
    failDisk(`sync * 1 0 slow:${random.int(20, 400)}`, random.int(500, 1_500)),

  async "a sync that hangs, and kill -9"({ failDisk, service }, random) {
    // In the longer time, some callers are told that theirs is over.
    await failDisk(`sync * ${random.int(1, 10)} 0 hang`, random.pick([500, 3_500]));
    await end(service(), "SIGKILL");
  },

  async "a sync that loses its pages"({ failDisk, service }, random) {
    const { child } = service();
    await failDisk(`sync -wal ${random.int(1, 10)} 1 lost`, 30_000);
    expect(child.exitCode, "the process goes on after a sync that failed").not.toBeNull();
  },

  async "a second process"({ service, startSecond }, random) {
    const first = service();
    const second = await startSecond();
    await delay(random.int(200, 1_500));
    await end(random.pick([first, second]), random.pick(["SIGKILL", "SIGTERM"]));
    await delay(random.int(0, 300));
  },

  async "another program that writes"({ service }, random) {
    const unlock = lockDatabase(service());
    await delay(random.pick([200, 1_500, 5_500]));
    unlock();
  },

  /** It also keeps a start waiting, which has to bring the log in. */
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

describe.runIf(hasTool("cc", ["--version"]))("callers of a service on SQLite", () => {
  let library: string;
  beforeAll(() => {
    library = compileRecorder();
  });
  afterAll(() => rmSync(dirname(library), { recursive: true }));

  it("are told the truth, whatever happens to its disk, its file and its process", {
    timeout,
  }, async () => {
    const random = createRandom(seedOf("SQLite history"));
    const totals = await runEpisodes(() => startWorld(random), faults, random, minutes);
    console.log(`SQLite history: ${JSON.stringify(totals)}`);
  });

  /** The service admits fewer calls at once than its callers make. */
  async function startWorld(random: Random): Promise<SqliteWorld> {
    const folder = realpathSync(temporaryFolder());
    const file = join(folder, "data/investors.db");
    const rules = join(folder, "rules");
    const settings = {
      REQUEST_TIMEOUT: "3s",
      MAX_IN_FLIGHT: "32",
      ...onDisk(library, dirname(file), rules),
    };
    mkdirSync(dirname(file));
    setRules(rules, "");
    const start = () => startService(settings, folder);
    const services = [await start()];
    const callers = startCallers(services, random);
    const service = () => services[0] as Service;

    async function recover(): Promise<void> {
      setRules(rules, "");
      for (const each of services.filter(hasEnded)) services.splice(services.indexOf(each), 1);
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
      async failDisk(text, ms) {
        setRules(rules, text);
        await Promise.race([delay(ms), service().exited]);
      },
      async startFresh() {
        await Promise.all(services.map((each) => end(each, "SIGKILL")));
        await recover();
        return service();
      },
      async end() {
        await Promise.all(services.map((each) => end(each, "SIGTERM")));
        const db = new DatabaseSync(file);
        const { integrity_check: check } = db.prepare("PRAGMA integrity_check").get() ?? {};
        const { count } = db.prepare("SELECT count(*) AS count FROM investors").get() ?? {};
        db.close();
        expect({ check, count }).toEqual({ check: "ok", count: callers.history.visible.length });
        rmSync(folder, { recursive: true });
      },
    };
  }
});

function hasEnded({ child }: Service): boolean {
  return child.exitCode !== null || child.signalCode !== null;
}

async function end(service: Service, signal: NodeJS.Signals): Promise<void> {
  service.child.kill(signal);
  await service.exited;
}
