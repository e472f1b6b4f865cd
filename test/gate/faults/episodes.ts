/** Stretches of time in which callers are at work and faults happen, one after the other. */
import { setTimeout as delay } from "node:timers/promises";
import { inject } from "vitest";
import { createRandom, type Random, seedOf } from "../../support/random.ts";
import { ask, type Service, waitFor } from "../../support/service.ts";
import { type Callers, readBack } from "./callers.ts";

/** How long episodes begin, and the time that a test has for them: the runner's at least. */
export const minutes = Number(process.env.FAULTS_MINUTES ?? 0);
export const timeout = minutes * 60_000 + inject("testMs");

/**
 * Does something random once, or as often as it begins in the minutes, and prints how often each thing
 * was met.
 *
 * @param least the minutes, if none are given
 */
export async function repeat(
  name: string,
  work: (random: Random, count: (what: string) => void, round: number) => Promise<void>,
  least = 0,
): Promise<void> {
  const random = createRandom(seedOf(name));
  const end = performance.now() + (minutes || least) * 60_000;
  const counts: Record<string, number> = {};
  const count = (what: string) => {
    counts[what] = (counts[what] ?? 0) + 1;
  };
  let round = 0;
  do {
    await work(random, count, round);
    round += 1;
  } while (performance.now() < end);
  console.log(`${name}: ${JSON.stringify(counts, undefined, 1)}`);
}

/** Services, their database and their callers. */
export interface World {
  readonly callers: Callers;
  /** Undoes a fault; services that have ended are started again. */
  recover(): Promise<void>;
  /** A service that has just been started, which knows only what is stored and has time for a call. */
  startFresh(): Promise<Service>;
  /** Ends it, and looks at what is stored without a service, if that says more. */
  end(): Promise<void>;
}

/** Makes something happen, which may last until {@link World.recover}. */
export type FaultOf<W extends World> = (world: W, random: Random) => Promise<void>;

/**
 * Runs episodes, in each of which every fault happens once, in any order, and prints how often each reply
 * came.
 *
 * @throws {Error} what the callers learned that contradicts a promise
 */
export async function runEpisodes<W extends World>(
  name: string,
  start: (random: Random) => Promise<W>,
  faults: Record<string, FaultOf<W>>,
): Promise<void> {
  await repeat(name, async (random, count) => {
    const world = await start(random);
    const { history, services, stop, acknowledgements } = world.callers;
    for (const [name, fault] of random.shuffle(Object.entries(faults))) {
      await delay(random.int(0, 500));
      try {
        await fault(world, random);
        await world.recover();
        await acknowledgements(20, world.recover);
        history.expectSound();
        count(name);
      } catch (cause) {
        const outputs = services.map((each) => each.output().slice(-2_000));
        throw new Error([name, history.describe(), ...outputs].join("\n"), { cause });
      }
    }
    await stop();
    const fresh = await world.startFresh();
    await waitFor(async () => (await ask(fresh, "/readyz")).ok);
    await readBack(history, fresh);
    await world.end();
    console.log(`${history.visible.length} records: ${JSON.stringify(history.counts)}`);
  });
}
