/** System calls that fail by a seed, in whatever a service, `copy` and `remove` do. */
import { existsSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { v4 } from "uuid";
import { describe, expect, it } from "vitest";
import { copy, tableAlone, tableOf } from "../../support/copying.ts";
import { failureOf } from "../../support/errors.ts";
import { listAll } from "../../support/pages.ts";
import { createRandom, type Random, seedOf } from "../../support/random.ts";
import { aCreate, largest } from "../../support/records.ts";
import {
  end,
  grpcClient,
  hasEnded,
  type Run,
  run,
  type Service,
  startService,
  waitFor,
} from "../../support/service.ts";
import { needs } from "../../support/tools.ts";
import { minutes, timeout } from "./episodes.ts";
import { type FailingDisk, prepareDisks } from "./failing-disk.ts";
import { contentOf } from "./history.ts";

/** What fails, and of which files. */
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
/** What a phase does only once or twice. */
const rare = ["truncate", "unlink", "rename"];
const errors = ["EIO", "ENOSPC", "EDQUOT", "EROFS", "EMFILE"];

/** The longest that a process may take to end, or to serve, while calls fail, in milliseconds. */
const patienceMs = 60_000;

const limits = { REQUEST_TIMEOUT: "3s", DRAIN_TIMEOUT: "5s" };
const file = "data/investors.db";

/** A disk, its service, and what that has said of each record, by content. */
interface World {
  readonly disk: FailingDisk;
  readonly random: Random;
  readonly records: Map<string, { state: "there" | "refused" | "open" | "removed"; id?: string }>;
  service: Service;
}

/** A fault: what is done while calls fail, and what has to hold of that. */
type Phase = (world: World, rule: string) => Promise<void>;

/** Creates records, many at once, whatever becomes of them. */
async function createSome({ service, records, random }: World, count: number): Promise<void> {
  const client = grpcClient(service);
  const fields = random.int(0, 1) === 0 ? {} : largest;
  async function create(): Promise<void> {
    for (let i = 0; i < count; i += 1) {
      const request = aCreate({ ...fields, city: `${random.int(0, 1e9)} ${performance.now()}` });
      const content = contentOf(request);
      records.set(content, { state: "open" });
      await client.createInvestor(request).then(
        ({ id }) => void records.set(content, { state: "there", id }),
        async (error) => {
          const { reason } = await failureOf(Promise.reject(error));
          if (reason === "STORE_UNAVAILABLE") records.set(content, { state: "refused" });
        },
      );
    }
  }
  await Promise.all(Array.from({ length: 8 }, create));
}

/** Waits for the end of a process. */
async function ended({ exited, output }: Run): Promise<number | NodeJS.Signals> {
  const code = await Promise.race([exited, delay(patienceMs, "patience")]);
  if (code === "patience") throw new Error(`it does not end: ${output()}`);
  return code as number | NodeJS.Signals;
}

const idsThere = ({ records }: World) =>
  [...records.values()].flatMap(({ state, id }) => (state === "there" && id ? [id] : []));

const phases: Record<string, Phase> = {
  async "a start"(world, rule) {
    const { disk, random } = world;
    await end(world.service, random.pick(["SIGTERM", "SIGKILL"]));
    disk.setRules(rule);
    const starting = run([], { ...disk.env, ...limits }, disk.folder);
    const serves = () => starting.output().includes("serving");
    const start = performance.now();
    await waitFor(
      () => serves() || hasEnded(starting.child) || performance.now() - start > patienceMs,
    );
    if (serves()) {
      const [, port] = / on http:\S*:(\d+)/.exec(starting.output()) ?? [];
      world.service = { ...starting, port: Number(port), folder: disk.folder };
      await createSome(world, 3);
    } else {
      expect(await ended(starting)).toBe(1);
    }
  },

  async creates(world, rule) {
    world.disk.setRules(rule);
    await createSome(world, world.random.int(1, 25));
    // What was acknowledged cannot be missing, though it may be unreadable.
    const client = grpcClient(world.service);
    for (const id of idsThere(world).slice(-20)) {
      const failure = await client.getInvestor({ id }).then(
        () => undefined,
        (error) => failureOf(Promise.reject(error)),
      );
      expect(failure?.reason).not.toBe("INVESTOR_NOT_FOUND");
    }
  },

  async "a shutdown"({ disk, service, random }, rule) {
    const isBusy = random.int(0, 1) === 0;
    if (isBusy) void createSome({ disk, service, random, records: new Map() }, 1).catch(() => {});
    disk.setRules(rule);
    service.child.kill("SIGTERM");
    const code = await ended(service);
    expect([0, 1]).toContain(code);
    disk.setRules("");
    // It may be that the WAL could not be deleted; the file is whole without it.
    if (code === 0) expect(tableAlone(disk.folder, file)).toEqual(tableOf(disk.folder, file));
  },

  async "a removal"(world, rule) {
    const { disk, records, random, service } = world;
    if (random.int(0, 1) === 0) await end(service, random.pick(["SIGTERM", "SIGKILL"]));
    const id = random.pick(idsThere(world));
    // Elsewhere, the free space of the file may keep a copy.
    const vacuum = random.pick([[], ["--vacuum"]]);
    const remove = () =>
      run(["remove", "--wait", "2s", ...vacuum, `sqlite:${file}`, id], disk.env, disk.folder);
    disk.setRules(rule);
    let removal = remove();
    let code = await ended(removal);
    disk.setRules("");
    if (code !== 0) {
      removal = remove();
      code = await ended(removal);
    }
    expect(code, removal.output()).toBe(0);
    const bytes = Buffer.from(id.replaceAll("-", ""), "hex");
    const names = vacuum.length > 0 ? [file, `${file}-wal`] : [`${file}-wal`];
    for (const name of names.map((each) => join(disk.folder, each))) {
      if (existsSync(name)) expect(readFileSync(name).includes(bytes), name).toBe(false);
    }
    for (const each of records.values()) if (each.id === id) each.state = "removed";
  },

  async "a copy"({ disk, service, random }, rule) {
    const { env, folder } = disk;
    if (random.int(0, 1) === 0) await end(service, random.pick(["SIGTERM", "SIGKILL"]));
    const to = random.pick(["copy.db", "copy.ndjson"]);
    const args = [`sqlite:${file}`, to === "copy.db" ? "sqlite:data/copy.db" : "data/copy.ndjson"];
    disk.setRules(rule);
    let { code, told } = await copy(args, { folder, env });
    disk.setRules("");
    const path = join(folder, "data", to);
    const claimsFile = told.includes("is there and whole");
    if (to === "copy.ndjson") expect(existsSync(path), told).toBe(code === 0 || claimsFile);
    if (code !== 0 && !claimsFile) ({ code, told } = await copy(args, { folder, env }));
    expect(code === 0 || claimsFile, told).toBe(true);
    const whole = tableOf(folder, file);
    if (to === "copy.db") expect(tableAlone(folder, "data/copy.db"), told).toEqual(whole);
    else expect(readFileSync(path, "utf8").match(/\n/g), told).toHaveLength(whole.rows);
  },
};

/** What a process has logged without end: more than the limit of each kind of line. */
function expectBounded({ output }: Run, startedAt: number): void {
  const seconds = (performance.now() - startedAt) / 1_000;
  const lines = output().match(/^{"level"/gm)?.length ?? 0;
  expect(lines, output().slice(-5_000)).toBeLessThan(60 + 60 * seconds);
}

/** Has a healthy disk, and looks at what the service has now, which must take creates again. */
async function judge(world: World): Promise<void> {
  const { disk, random, records } = world;
  disk.setRules("");
  if (random.int(0, 1) === 0) await end(world.service, random.pick(["SIGTERM", "SIGKILL"]));
  const request = aCreate({ requestId: v4() });
  const created = await waitFor(async () => {
    // It may still be about to end, for what it has met before.
    if (hasEnded(world.service.child)) {
      expect([0, 1, null], world.service.output()).toContain(world.service.child.exitCode);
      world.service = await startService({ ...disk.env, ...limits }, disk.folder);
    }
    return grpcClient(world.service)
      .createInvestor(request)
      .catch(() => undefined);
  });
  records.set(contentOf(request), { state: "there", id: created.id });
  const left = new Map(
    (await listAll(grpcClient(world.service))).map((each) => [contentOf(each), each.id]),
  );
  for (const [content, { state, id }] of records) {
    if (state === "there") expect(left.get(content), "what was acknowledged").toBe(id);
    if (state === "refused" || state === "removed") expect(left.has(content), state).toBe(false);
  }
}

describe("whatever system call fails", needs("cc"), () => {
  const createDisk = prepareDisks();

  it("what is said is true, and all is well when the disk is", { timeout }, async () => {
    const random = createRandom(seedOf("failing calls"));
    const until = performance.now() + (minutes || 0.4) * 60_000;
    const count: Record<string, number> = {};
    for (let round = 0; performance.now() < until; round += 1) {
      const disk = createDisk();
      const startedAt = performance.now();
      const service = await startService({ ...disk.env, ...limits }, disk.folder);
      const world: World = { disk, random, records: new Map(), service };
      await createSome(world, 5);
      for (const [name, phase] of random.shuffle(Object.entries(phases))) {
        const [operation, suffixes] = random.pick(Object.entries(operations));
        const last = rare.includes(operation) ? 2 : 12;
        const when = random.pick([`=${random.int(1, last)}`, `${random.int(1, last)}`, "/3"]);
        const rule = `${operation} ${random.pick(suffixes)} ${when} ${random.pick(errors)}`;
        const what = `round ${round}, ${name}: ${rule}`;
        const before = disk.strikes();
        try {
          await phase(world, rule);
          expectBounded(world.service, startedAt);
          await judge(world);
        } catch (cause) {
          throw new Error(`${what}\n${world.service.output().slice(-3_000)}`, { cause });
        }
        const found = disk.strikes() > before ? `failing ${operation} in ${name}` : "no failure";
        count[found] = (count[found] ?? 0) + 1;
        for (const each of ["copy.db", "copy.db-wal", "copy.db-shm", "copy.ndjson"]) {
          rmSync(join(disk.data, each), { force: true });
        }
      }
      await end(world.service, "SIGKILL");
      rmSync(disk.folder, { recursive: true });
    }
    console.log(`failing calls: ${JSON.stringify(count)}`);
  });
});
