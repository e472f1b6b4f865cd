/** Stretches of time in which callers are at work and faults happen, one after the other. */
import { setTimeout as delay } from "node:timers/promises";
import type { Random } from "../support/random.ts";
import type { Service } from "../support/service.ts";
import { type Callers, readBack } from "./callers.ts";

/** Services, their database and their callers. */
export interface World {
  readonly callers: Callers;
  /** Undoes a fault; services that have ended are started again. */
  recover(): Promise<void>;
  /** A service that has just been started, which knows only what is stored. */
  startFresh(): Promise<Service>;
  /** The state that it is in, for those who read about a failure. */
  describe(): Promise<string>;
  /** Ends it, and looks at what is stored without a service, if that says more. */
  end(): Promise<void>;
}

/** Makes something happen, which may last until {@link World.recover}. */
export type FaultOf<W extends World> = (world: W, random: Random) => Promise<void>;

/** What is needed to {@link runEpisodes run episodes}. */
export interface Episodes<W extends World> {
  start(): Promise<W>;
  faults: Record<string, FaultOf<W>>;
  random: Random;
  /** Minutes in which episodes begin; there is at least one. */
  minutes: number;
}

/**
 * Runs episodes, in each of which every fault happens once, in any order.
 *
 * @returns how often which fault happened and which reply came
 * @throws {Error} what the callers were told that is not true
 */
export async function runEpisodes<W extends World>({
  start,
  faults,
  random,
  minutes,
}: Episodes<W>): Promise<Record<string, number>> {
  const totals: Record<string, number> = {};
  const add = (name: string, count: number) => {
    totals[name] = (totals[name] ?? 0) + count;
  };
  const end = performance.now() + minutes * 60_000;
  do {
    const world = await start();
    const { callers } = world;
    for (const [name, fault] of random.shuffle(Object.entries(faults))) {
      await makeHappen(world, name, fault, random);
      callers.history.expectSound();
      add(`fault: ${name}`, 1);
    }
    await callers.stop();
    await readBack(callers.history, await world.startFresh());
    callers.history.expectSound();
    await world.end();
    for (const [name, count] of Object.entries(callers.history.counts)) add(name, count);
    add("records", callers.history.visible.length);
    add("episodes", 1);
  } while (performance.now() < end);
  return totals;
}

/** Makes a fault happen, and waits until creates are acknowledged again. */
export async function makeHappen<W extends World>(
  world: W,
  name: string,
  fault: FaultOf<W>,
  random: Random,
): Promise<void> {
  const { callers } = world;
  await delay(random.int(0, 500));
  callers.history.note(name);
  try {
    await fault(world, random);
    await world.recover();
    await callers.acknowledgements(20);
  } catch (cause) {
    callers.history.expectSound();
    const { notes, counts } = callers.history;
    const parts = [name, await world.describe(), notes.join("\n"), JSON.stringify(counts)];
    const outputs = callers.services.map((each) => each.output().slice(-2_000));
    throw new Error([...parts, ...outputs].join("\n"), { cause });
  }
}
