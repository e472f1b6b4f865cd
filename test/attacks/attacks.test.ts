/**
 * Hostile clients beside good callers. Each round is one attack by 64 connections at once, half of
 * them with the token of a greedy caller, the others without credentials. What they send depends on
 * the seed of the round, which a failure prints: `SEED=7 npx vitest run test/attacks -t TLS` repeats it.
 */
import { describe, expect, it } from "vitest";
import { createRandom, seedOf } from "../support/random.ts";
import { type Figures, startCallers } from "./callers.ts";
import { floods } from "./floods.ts";
import { forms } from "./forms.ts";
import { type Attack, type Kind, marks, startTarget } from "./target.ts";

const clients = 64;

/**
 * For `npm run attack`. Otherwise half of the attacks is made on each kind of service, beside other
 * tests: that delays replies, and the collection of garbage.
 */
const minutes = Number(process.env.ATTACK_MINUTES ?? 0);
const roundMs = minutes > 0 ? 4_000 : 800;

const maxMemoryMb = minutes > 0 ? 512 : 1_024;
const minServed = 0.98;
const maxP99Ms = 1_000;
const minCalls = 100;
const secrets = new RegExp(Object.values(marks).join("|"));

/** When no call must be left: its deadline is 3 s, and then its reply may be unread for 30 s. */
const endedMs = 40_000;

/** When nothing must be left: the ping that notices who vanished comes after 60 s and waits for 30. */
const settledMs = 100_000;

const all = { ...forms, ...floods };
const any: Attack = (hostile) => hostile.random.pick(Object.values(all))(hostile);
const attacks = Object.entries({ ...all, "everything at once": any });

/** A service and its good callers, before any attack. */
type Scene = Awaited<ReturnType<typeof prepare>>;

async function prepare(kind: Kind) {
  const target = await startTarget(kind);
  const callers = await startCallers(target);
  callers.begin();
  await callers.end(minCalls);
  return { target, callers, initial: await target.holdings() };
}

/** Waits until the service holds no more than at first, of calls or of everything. */
async function settle({ target, initial }: Scene, kinds?: "calls"[]): Promise<void> {
  const timeout = kinds ? endedMs : settledMs;
  const options = { timeout, interval: 200, message: "what is left" };
  await expect.poll(() => target.excess(initial, kinds), options).toEqual([]);
}

/** Ends both; resolves with the exit code of the service. */
async function dismiss({ target, callers }: Scene) {
  await callers.stop();
  return target.stop();
}

/** Does an attack beside good callers, and throws if it does any harm. */
async function withstand(seed: number, scene: Scene, attack: Attack): Promise<void> {
  const { target, callers } = scene;
  const logged = target.output().length;
  const [start, waitedMs] = [performance.now(), target.waitedMs()];
  callers.begin();
  const lives = Array.from({ length: clients }, async (_, i) => {
    const random = createRandom((seed * clients + i) | 0);
    do await attack(target.hostile(random));
    while (performance.now() < start + roundMs && target.isAlive());
  });
  const ends = await Promise.allSettled(lives);
  target.closeAll();
  if (!target.isAlive()) throw new Error(`the process ended: ${target.output().slice(-2_000)}`);
  const figures = await callers.end(minCalls);
  const waited = (target.waitedMs() - waitedMs) / (performance.now() - start);

  for (const end of ends) if (end.status === "rejected") throw end.reason;
  expectServed(figures, waited);
  expect(target.leaks[0], "what a hostile client must not see").toBe(undefined);
  expect(target.recordsOfStrangers(), "records of strangers").toBe(0);
  expectGoodLog(target.output().slice(logged), (performance.now() - start) / 1_000);
  expect(target.peakMb(), "MB at the peak").toBeLessThan(maxMemoryMb);
  await settle(scene, ["calls"]);
}

/** Expects that the log holds no fault and no secret, and is not flooded by refused callers. */
function expectGoodLog(log: string, seconds: number): void {
  const lines = log.split("\n");
  const bad = lines.find((line) => secrets.test(line) || /"level":[56]0/.test(line));
  if (bad) throw new Error(`in the log: ${bad.slice(0, 2_000)}`);
  const refusals = lines.filter((line) => line.includes("UNAUTHENTICATED"));
  expect(refusals.length, "lines about refused callers").toBeLessThan(11 * (seconds + 1));
}

/**
 * Expects that good callers were served, and in time unless the machine is the bottleneck: hostile
 * clients need a core of their own. Where the service had to wait for one for more than a quarter
 * of the time, or other work is done beside it, its latency says nothing about it.
 */
function expectServed({ calls, failures, p99Ms }: Figures, waited: number): void {
  const isTimed = minutes > 0 && waited < 0.25;
  const isLate = (failure: string) => /deadline_exceeded|TimeoutError/.test(failure);
  const counted = isTimed ? failures : failures.filter((each) => !isLate(each));
  const served = 1 - counted.length / calls;
  expect(served, `share of ${calls} good calls: ${counted.slice(0, 3)}`).toBeGreaterThan(minServed);
  if (isTimed) expect(p99Ms, "p99 of good callers in ms").toBeLessThan(maxP99Ms);
}

const kinds: Kind[] = ["plain", "TLS"];

describe.runIf(process.platform === "linux").each(kinds)("the service, %s", (kind) => {
  it("withstands every attack", { timeout: minutes * 60_000 + 600_000 }, async () => {
    const isReplay = process.env.SEED !== undefined;
    const firstSeed = seedOf(`attacks, ${kind}`) % 2 ** 24;
    const lastSeed = firstSeed + (isReplay ? 0 : Math.floor(attacks.length / kinds.length));
    const end = performance.now() + (isReplay ? 0 : (minutes * 60_000) / kinds.length);
    const peaks: Record<string, number> = {};
    const failures: string[] = [];
    let connections = 0;
    let scene: Scene | undefined;
    let seed = firstSeed;
    for (; seed <= lastSeed || performance.now() < end; seed += 1) {
      const [name, attack] = attacks[seed % attacks.length] as [string, Attack];
      scene ??= await prepare(kind);
      const { target } = scene;
      const before = target.connections();
      target.resetPeak();
      try {
        await withstand(seed, scene, attack);
        peaks[name] = Math.max(peaks[name] ?? 0, target.peakMb());
      } catch (error) {
        failures.push(`SEED=${seed}, ${name}: ${(error as Error).message}`);
        console.error(`FAILED ${kind}, ${failures.at(-1)}`);
        await dismiss(scene);
        scene = undefined;
      }
      connections += target.connections() - before;
    }
    if (scene) {
      await settle(scene);
      expect(await dismiss(scene), "exit code").toBe(0);
    }
    const highest = Object.entries(peaks).toSorted(([, a], [, b]) => b - a);
    console.log(
      `${kind}: ${seed - firstSeed} attacks, ${connections} connections; MB at the peak:`,
      Object.fromEntries(highest.slice(0, 5)),
    );
    expect(failures).toEqual([]);
  });
});
