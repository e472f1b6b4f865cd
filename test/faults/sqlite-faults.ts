/** What can happen to a service on SQLite while it is called. */
import { execFileSync } from "node:child_process";
import { copyFileSync, linkSync, readdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as delay } from "node:timers/promises";
import { expect } from "vitest";
import type { Random } from "../support/random.ts";
import { lockDatabase, type Service } from "../support/service.ts";
import { startCallers } from "./callers.ts";
import type { FaultOf, World } from "./episodes.ts";
import { type RecordedService, recordService } from "./recorded-service.ts";

/** A service whose disk, clock and process can be made to fail, and its callers. */
export interface SqliteWorld extends World {
  readonly run: RecordedService;
  /** The service as it runs now. */
  service(): Service;
  /** Starts a process beside it on the same file. */
  startSecond(): Promise<Service>;
  /** Shifts the clock of all processes by seconds. */
  shiftClock(seconds: number): void;
}

type Fault = FaultOf<SqliteWorld>;

/** Starts a service that admits fewer calls at once than its callers make. */
export async function startSqliteWorld(
  library: string,
  random: Random,
  env: NodeJS.ProcessEnv = {},
): Promise<SqliteWorld> {
  const run = recordService(library, random);
  const clock = join(run.data, "../clock");
  const settings = {
    REQUEST_TIMEOUT: "3s",
    MAX_IN_FLIGHT: "32",
    CLOCK_SHIFT: clock,
    ...env,
  };
  const shiftClock = (seconds: number) =>
    writeFileSync(clock, new BigInt64Array([BigInt(seconds)]), { flag: "r+" });
  writeFileSync(clock, new BigInt64Array(1));
  const services = [await run.start("", settings)];
  const callers = startCallers(services, random);

  async function recover(): Promise<void> {
    run.setRules("");
    for (const each of services.filter(hasEnded)) services.splice(services.indexOf(each), 1);
    if (services.length === 0) services.push(await run.start("", settings));
  }

  return {
    callers,
    run,
    service: () => services[0] as Service,
    async startSecond() {
      const second = await run.start("", settings);
      services.push(second);
      return second;
    },
    recover,
    shiftClock,
    async startFresh() {
      await Promise.all(services.map((each) => end(each, "SIGKILL")));
      await recover();
      return services[0] as Service;
    },
    describe: async () => String(readdirSync(run.data)),
    async end() {
      await Promise.all(services.map((each) => end(each, "SIGTERM")));
      const db = new DatabaseSync(join(run.data, "investors.db"));
      expect(db.prepare("PRAGMA integrity_check").get()?.integrity_check).toBe("ok");
      const { count } = db.prepare("SELECT count(*) AS count FROM investors").get() ?? {};
      expect(count).toBe(callers.history.visible.length);
      db.close();
      run.remove();
    },
  };
}

function hasEnded({ child }: Service): boolean {
  return child.exitCode !== null || child.signalCode !== null;
}

async function end(service: Service, signal: NodeJS.Signals): Promise<void> {
  service.child.kill(signal);
  await service.exited;
}

/** Lets it fail in a way until the time is over, or the process ends. */
async function failDisk({ run, service }: SqliteWorld, rules: string, ms: number): Promise<void> {
  run.setRules(rules);
  await Promise.race([delay(ms), service().exited]);
}

const diskError: Fault = async (world, random) => {
  const operation = random.pick(["write", "write", "sync", "truncate"]);
  const suffix = random.pick(["-wal", "-wal", ".db", "*"]);
  const action = random.pick(["EIO", "ENOSPC", "EDQUOT", "short"]);
  const rule = `${operation} ${suffix} ${random.int(1, 20)} ${random.int(0, 5)} ${action}`;
  world.callers.history.note(rule);
  await failDisk(world, rule, random.int(100, 1_500));
};

/** SQLite takes a page for damaged that cannot be read. */
const readError: Fault = async (world, random) => {
  const { history } = world.callers;
  history.isUnreadable = true;
  const rule = `read * ${random.int(1, 10)} ${random.int(0, 5)} ${random.pick(["EIO", "short"])}`;
  history.note(rule);
  await failDisk(world, rule, random.int(100, 1_500));
  await world.recover();
  await delay(1_000);
  history.isUnreadable = false;
};

const fullDisk: Fault = (world, random) =>
  failDisk(
    world,
    `write * 1 0 ${random.pick(["ENOSPC", "EDQUOT"])}\ntruncate * 1 0 ENOSPC`,
    random.int(300, 1_500),
  );

const slowDisk: Fault = (world, random) =>
  failDisk(world, `sync * 1 0 slow:${random.int(20, 400)}`, random.int(500, 1_500));

const hungSync: Fault = async (world, random) => {
  const hang = `sync * ${random.int(1, 10)} 0 hang`;
  // Some callers are told that their time is over.
  await failDisk(world, hang, random.pick([500, 3_500]));
  await end(world.service(), "SIGKILL");
};

const lostSync: Fault = async (world, random) => {
  const service = world.service();
  await failDisk(world, `sync -wal ${random.int(1, 10)} 1 lost`, 30_000);
  if (!hasEnded(service)) throw new Error("the process goes on after a sync that failed");
};

const kill: Fault = (world) => end(world.service(), "SIGKILL");

const shutdown: Fault = (world) => end(world.service(), "SIGTERM");

const secondProcess: Fault = async (world, random) => {
  const first = world.service();
  const second = await world.startSecond();
  await delay(random.int(200, 1_500));
  const signal = random.pick(["SIGKILL", "SIGTERM"] as const);
  await end(random.pick([first, second]), signal);
  await delay(random.int(0, 300));
};

const otherWriter: Fault = async ({ service }, random) => {
  const unlock = lockDatabase(service());
  await delay(random.pick([200, 1_500, 5_500]));
  unlock();
};

/** It also keeps a start waiting, which has to bring the log in. */
const otherReader: Fault = async (world, random) => {
  const db = new DatabaseSync(join(world.run.data, "investors.db"), { readOnly: true });
  db.exec("BEGIN");
  db.prepare("SELECT count(*) FROM investors").get();
  const left = delay(random.int(500, 2_000)).then(() => db.close());
  if (random.int(0, 1) === 0) await kill(world, random);
  await world.recover();
  await left;
};

/** The file or its log is moved, and comes back once the process has ended over it. */
const movedFile: Fault = async (world, random) => {
  const { run, callers } = world;
  const names = ["investors.db", "investors.db-wal"].map((name) => join(run.data, name));
  const moved = random.pick([names, names.slice(0, 1), names.slice(1)]);
  const way = random.pick(["moved", "replaced by an empty file", "replaced by a copy"]);
  callers.history.note(`${moved} ${way}`);
  for (const name of moved) {
    linkSync(name, `${name}.kept`);
    if (way === "replaced by an empty file") writeFileSync(`${name}.new`, "");
    if (way === "replaced by a copy") copyFileSync(name, `${name}.new`);
    if (way.startsWith("replaced")) renameSync(`${name}.new`, name);
    else rmSync(name);
  }
  await world.service().exited;
  for (const name of moved) renameSync(`${name}.kept`, name);
};

const clockJump: Fault = async (world, random) => {
  const seconds = random.pick([-86_400, -3_600, -60, 60, 3_600, 86_400 * 365]);
  world.shiftClock(seconds);
  await delay(random.int(200, 1_000));
  if (random.int(0, 2) === 0) await kill(world, random);
  await world.recover();
  await delay(random.int(0, 300));
  world.shiftClock(0);
};

const pause: Fault = async ({ service }, random) => {
  const { child } = service();
  child.kill("SIGSTOP");
  await delay(random.pick([100, 1_000, 3_500]));
  child.kill("SIGCONT");
};

const fewDescriptors: Fault = async ({ service }, random) => {
  const { pid } = service().child;
  const inUse = readdirSync(`/proc/${pid}/fd`).length;
  const limit = (soft: string | number) =>
    execFileSync("prlimit", ["--pid", String(pid), `--nofile=${soft}:`]);
  limit(inUse + random.int(-3, 3));
  // New connections are what takes descriptors.
  const url = `http://127.0.0.1:${service().httpPort}/readyz`;
  const end = performance.now() + random.int(300, 1_500);
  while (performance.now() < end && !hasEnded(service())) {
    const visits = Array.from({ length: 10 }, () =>
      fetch(url, { headers: { connection: "close" }, signal: AbortSignal.timeout(1_000) }),
    );
    await Promise.allSettled(visits);
  }
  if (!hasEnded(service())) limit(1_024);
};

/** By name. */
export const sqliteFaults: Record<string, Fault> = {
  "kill -9": kill,
  shutdown,
  "an error of the disk": diskError,
  "pages that cannot be read": readError,
  "a full disk": fullDisk,
  "a slow disk": slowDisk,
  "a sync that hangs": hungSync,
  "a sync that loses its pages": lostSync,
  "a second process": secondProcess,
  "another program that writes": otherWriter,
  "another program that reads": otherReader,
  "a file that is moved or replaced": movedFile,
  "a clock that jumps": clockJump,
  "a process that is stopped for a while": pause,
  "too few descriptors": fewDescriptors,
};
