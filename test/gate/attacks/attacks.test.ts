/**
 * Hostile clients and, by `npm run attack`, good callers beside them. Each round is one attack by 64 connections at once, half of
 * them with the token of a greedy caller, the others without credentials. What they send depends on
 * the seed of the round, which a failure prints: `SEED=7 npm run attack -- -t TLS` repeats it.
 */
import { cpus } from "node:os";
import { describe, expect, inject, it } from "vitest";
import { limits } from "../../../src/limits.ts";
import { createRandom, seedOf } from "../../support/random.ts";
import { type Figures, startCallers } from "./callers.ts";
import { floods } from "./floods.ts";
import { forms } from "./forms.ts";
import { type Attack, isAlone, type Kind, marks, startTarget } from "./target.ts";

const clients = 64;

/** How long both kinds of service are attacked, one after the other; in `npm test` beside others. */
const minutes = Number(process.env.ATTACK_MINUTES ?? 1);
const roundMs = 1_500;

const maxMemoryMb = 512;
const minServed = 0.98;
const maxP99Ms = 1_000;
const minCalls = 100;

/** How busy the one thread of the service, and all cores, may be while good callers are timed. */
const maxBusy = 0.75;
const secrets = new RegExp(Object.values(marks).join("|"));

const all = { ...forms, ...floods };
const any: Attack = (hostile) => hostile.random.pick(Object.values(all))(hostile);
const attacks = Object.entries({ ...all, "everything at once": any });

/** How long all cores together had nothing to do, in ms. */
const idleMs = () => cpus().reduce((sum, { times }) => sum + times.idle, 0);

/** A service and its good callers, before any attack. */
type Scene = Awaited<ReturnType<typeof prepare>>;

async function prepare(kind: Kind) {
  const target = await startTarget(kind);
  const callers = isAlone ? startCallers(target) : undefined;
  await callers?.figures(minCalls);
  return { target, callers, initial: await target.holdings() };
}

/** How long the service may hold a session of TLS that Node.js does not close, and some more. */
const closedWithinMs = limits.idleMs + limits.unreadMs + 20_000;

/** Waits until the service holds no more than at first, of calls or of everything. */
async function settle({ target, initial }: Scene, kinds?: "calls"[]): Promise<void> {
  const options = { interval: 200, timeout: kinds ? inject("waitMs") : closedWithinMs };
  const poll = expect.poll(() => target.excess(initial, kinds), options).toEqual([]);
  await Promise.race([poll, target.throwOnceEnded]);
}

/**
 * Does an attack beside good callers, and throws if it does any harm.
 *
 * @returns whether their calls were timed
 */
async function withstand(seed: number, scene: Scene, attack: Attack): Promise<boolean> {
  const { target, callers } = scene;
  const logged = target.output().length;
  const [start, busyMs, idle] = [performance.now(), target.busyMs(), idleMs()];
  await callers?.figures(0);
  const lives = Array.from({ length: clients }, async (_, i) => {
    const random = createRandom((seed * clients + i) | 0);
    do await attack(target.hostile(random));
    while (performance.now() < start + roundMs && target.isAlive());
  });
  const ends = await Promise.allSettled(lives);
  target.closeAll();
  if (!target.isAlive()) await target.throwOnceEnded;
  const figures = await callers?.figures(minCalls);
  const elapsed = performance.now() - start;
  const isServiceFree = target.busyMs() - busyMs < maxBusy * elapsed;
  const isMachineFree = idleMs() - idle > (1 - maxBusy) * elapsed * cpus().length;

  for (const end of ends) if (end.status === "rejected") throw end.reason;
  const isTimed = isAlone && isServiceFree && isMachineFree;
  if (figures) expectServed(figures, isTimed);
  expect(target.leaks[0], "what a hostile client must not see").toBe(undefined);
  expect(target.recordsOfStrangers(), "records of strangers").toBe(0);
  const log = target.output().slice(logged).split("\n");
  const isBad = (line: string) => secrets.test(line) || /"level":[56]0/.test(line);
  expect(log.find(isBad)?.slice(0, 2_000), "a fault or a secret in the log").toBe(undefined);
  expect(target.peakMb(), "MB at the peak").toBeLessThan(maxMemoryMb);
  await settle(scene, ["calls"]);
  return isTimed;
}

/** Expects that good callers were served and, if their calls were timed, in time. */
function expectServed({ calls, failures, p99Ms }: Figures, isTimed: boolean): void {
  const isLate = (failure: string) => /deadline_exceeded|TimeoutError/i.test(failure);
  const counted = isTimed ? failures : failures.filter((each) => !isLate(each));
  const served = 1 - counted.length / calls;
  expect(served, `share of ${calls} good calls: ${counted.slice(0, 3)}`).toBeGreaterThanOrEqual(
    minServed,
  );
  if (isTimed) expect(p99Ms, "p99 of good callers in ms").toBeLessThan(maxP99Ms);
}

const kinds: Kind[] = ["plain", "TLS"];

describe.each(kinds)("the service, %s", (kind) => {
  it("withstands every attack", { timeout: minutes * 60_000 + inject("testMs") }, async () => {
    const isReplay = process.env.SEED !== undefined;
    const firstSeed = seedOf(`attacks, ${kind}`) % 2 ** 24;
    const scene = await prepare(kind);
    const end = performance.now() + (isReplay ? 0 : (minutes * 60_000) / kinds.length);
    const { target, callers } = scene;
    let timed = 0;
    let seed = firstSeed;
    do {
      const [name, attack] = attacks[seed % attacks.length] as [string, Attack];
      target.resetPeak();
      try {
        if (await withstand(seed, scene, attack)) timed += 1;
      } catch (error) {
        throw new Error(`SEED=${seed}, ${name}: ${(error as Error).message}`, { cause: error });
      }
      seed += 1;
    } while (performance.now() < end);
    console.log(`${kind}: ${seed - firstSeed} attacks, ${timed} timed`);
    await settle(scene);
    await callers?.stop();
    expect(await target.stop(), "exit code").toBe(0);
  });
});
