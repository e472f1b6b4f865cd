import { rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as delay } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { createRandom, type Random, seedOf } from "../support/random.ts";
import { hasTool } from "../support/tools.ts";
import { readBack } from "./callers.ts";
import { compileRecorder } from "./recorded-service.ts";
import { type SqliteWorld, sqliteFaults, startSqliteWorld } from "./sqlite-faults.ts";

const minutes = Number(process.env.FAULTS_MINUTES ?? 0);
const timeout = minutes * 60_000 + 600_000;
const names = Object.keys(sqliteFaults);

const hasTools = [hasTool("cc", ["--version"]), hasTool("prlimit", ["--version"])];

describe.runIf(hasTools.every(Boolean))("callers of a service on SQLite", () => {
  let library: string;
  beforeAll(() => {
    library = compileRecorder();
  });
  afterAll(() => rmSync(dirname(library), { recursive: true }));

  it("are told the truth, whatever happens to its disk, its files, its clock and its process", {
    timeout,
  }, async () => {
    const random = createRandom(seedOf("SQLite history"));
    const end = performance.now() + minutes * 60_000;
    const totals: Record<string, number> = {};
    do {
      // Each once, in any order, so that each runs also where time is short.
      const world = await startSqliteWorld(library, random);
      for (const name of shuffled(names, random)) {
        await makeHappen(name, world, random);
        add(totals, { [`fault: ${name}`]: 1 });
      }
      const { history } = world.callers;
      await world.callers.stop();
      await world.service().child.kill("SIGKILL");
      await world.service().exited;
      await world.revive();
      await readBack(history, world.service());
      await stop(world);
      expectWhole(join(world.run.data, "investors.db"), history.visible.length);
      add(totals, { ...history.counts, records: history.visible.length });
      history.expectSound();
      world.run.remove();
    } while (performance.now() < end);
    console.log("SQLite history:", totals);
  });
});

async function makeHappen(name: string, world: SqliteWorld, random: Random): Promise<void> {
  const { history } = world.callers;
  await delay(random.int(0, 500));
  history.note(name);
  try {
    await sqliteFaults[name]?.(world, random);
    await world.revive();
    await world.callers.acknowledgements(20);
  } catch (error) {
    history.expectSound();
    throw new Error(`${name}: ${world.service()?.output().slice(-2_000)}`, { cause: error });
  }
}

async function stop(world: SqliteWorld): Promise<void> {
  world.service().child.kill("SIGTERM");
  await world.service().exited;
}

/** Reads the file as another program does. */
function expectWhole(path: string, count: number): void {
  const db = new DatabaseSync(path);
  expect(db.prepare("PRAGMA integrity_check").get()).toEqual({ integrity_check: "ok" });
  expect(db.prepare("SELECT count(*) AS count FROM investors").get()).toEqual({ count });
  db.close();
}

function shuffled<T>(items: readonly T[], random: Random): T[] {
  const rest = [...items];
  return items.map(() => rest.splice(random.int(0, rest.length - 1), 1)[0] as T);
}

function add(totals: Record<string, number>, counts: Record<string, number>): void {
  for (const [name, count] of Object.entries(counts)) totals[name] = (totals[name] ?? 0) + count;
}
