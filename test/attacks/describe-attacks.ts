import { availableParallelism, loadavg } from "node:os";
import { setTimeout as delay } from "node:timers/promises";
import { describe, expect, it } from "vitest";
import { createRandom, type Random, seedOf } from "../support/random.ts";
import { type GoodCallers, startGoodCallers } from "./good-callers.ts";
import { type Holdings, watchProcess } from "./process-watch.ts";
import { customersText, secret, strangersText } from "./requests.ts";
import { startTarget, type Target, type TargetKind } from "./target.ts";

/** Something that is done to a service, which must go on as if nothing had been. */
export interface Attack {
  readonly name: string;
  /** What it is done to; both if absent. */
  readonly on?: TargetKind;
  /** Settings that the service needs for it. */
  readonly settings?: NodeJS.ProcessEnv;
  /** Whether it gets a service of its own, since malloc keeps much of what it makes that take. */
  readonly isAlone?: boolean;
  /**
   * Does it; what it asserts besides is thrown.
   *
   * @returns how many connections, requests or streams it took
   */
  run(target: Target, random: Random): Promise<number>;
}

/** Test files of attacks, which share the time: two tests each, of which two run at once. */
const families = 8;
const minutes = Number(process.env.ATTACK_MINUTES ?? 0) / families;

/** The only attack to do, by its name, with SEED as its own seed. */
const { ATTACK } = process.env;

/**
 * The most memory that the process may take, in MB: under one attack, and under attacks one after
 * the other, of which malloc keeps what a thousand connections of TLS once took.
 */
const maxResidentMb = 300;
const maxResidentInRowMb = 320;

/** How many attacks of a test may be repeated; a fault that shows now and then exceeds it. */
const maxRepeats = 3;

/** The most that the 99th percentile of good callers may be beside an attack, in ms. */
const maxP99Ms = 1_000;

/** The least share of good calls that are served beside an attack, and on a busy machine. */
const minShare = 0.98;
const minShareBusy = 0.9;

/** How long it may take to give back what an attack made it take, in ms. */
const settleMs = 30_000;

/** The least calls of good callers beside an attack. */
const minCalls = 100;

/** How a good call reads that failed because it took too long, by whichever protocol. */
const late = /ConnectError: \[deadline_exceeded\]| Error: (504 |no reply in time$)/;

/** What a service holds that attacks could take. */
interface Stock extends Partial<Holdings> {
  readonly inFlight: number;
  readonly timers: number;
}

/** A service, and those who call it for what it is there for. */
interface Scene {
  readonly target: Target;
  readonly callers: GoodCallers;
  readonly settings: NodeJS.ProcessEnv | undefined;
  /** Whether it is there for one attack only. */
  readonly isAlone: boolean;
  /** What the service held before any attack. */
  readonly initial: Stock;
  /** The 99th percentile of good callers without an attack, in ms. */
  readonly calmP99Ms: number;
}

/**
 * Makes a test for each kind of service that does all attacks to it, in any order. In CI each is
 * done once; with ATTACK_MINUTES they go round until their share of the time is over, and the test
 * goes on after a failure, with a new service.
 *
 * An attack whose only trouble may come from a machine that stalls is repeated once on a new service,
 * and fails if that has trouble as well.
 */
export function describeAttacks(family: string, attacks: readonly Attack[]): void {
  describe.each<TargetKind>(["plain", "TLS"])(`${family}, %s`, (kind) => {
    const own = attacks.filter(
      ({ on, name }) => (on ?? kind) === kind && (ATTACK ?? name) === name,
    );
    it.runIf(own.length > 0)("do no harm", { timeout: minutes * 60_000 + 600_000 }, async () => {
      const random = createRandom(seedOf(`${family}, ${kind}`));
      const counts: Record<string, number> = {};
      const peaks: Record<string, number> = {};
      const failures: string[] = [];
      let repeats = 0;
      let scene: Scene | undefined;
      const end = performance.now() + minutes * 60_000;
      do {
        for (const attack of random.shuffle(own)) {
          const seed = ATTACK === undefined ? random.int(0, 2 ** 31 - 1) : random.seed;
          try {
            scene = await prepare(kind, attack, scene);
            let done = await withstand(scene, attack, createRandom(seed));
            if (done.doubts.length > 0) {
              const why = `SEED=${seed}: ${done.doubts.join("; ").slice(0, 1_000)}`;
              repeats += 1;
              if (repeats > maxRepeats) throw new Error(`too often: ${done.doubts.join("; ")}`);
              console.warn(`REPEATED ${family}, ${kind}: ATTACK="${attack.name}" ${why}`);
              await dismiss(scene);
              scene = await prepare(kind, { ...attack, isAlone: true }, undefined);
              done = await withstand(scene, attack, createRandom(seed));
              if (done.doubts.length > 0) throw new Error(`again: ${done.doubts.join("; ")}`);
            }
            const { count, peakMb } = done;
            counts[attack.name] = (counts[attack.name] ?? 0) + count;
            peaks[attack.name] = Math.max(peaks[attack.name] ?? 0, Math.round(peakMb));
          } catch (error) {
            const message = String((error as Error).message).slice(0, 1_000);
            failures.push(`ATTACK="${attack.name}" SEED=${seed}: ${message}`);
            console.error(`FAILED ${family}, ${kind}: ${failures.at(-1)}`);
            if (scene) await dismiss(scene).catch(() => {});
            scene = undefined;
          }
        }
      } while (performance.now() < end);
      if (scene) await dismiss(scene);
      console.log(`${family}, ${kind}: attacks: ${JSON.stringify(counts)}`);
      console.log(`${family}, ${kind}: peaks of memory in MB: ${JSON.stringify(peaks)}`);
      if (failures.length > 0) throw new Error(failures.join("\n"));
    });
  });
}

/** What an attack took, and what it made the process take. */
interface Done {
  readonly count: number;
  readonly peakMb: number;
  /** What was wrong that need not be the service's fault. */
  readonly doubts: string[];
}

async function prepare(
  kind: TargetKind,
  { settings, isAlone = ATTACK !== undefined }: Attack,
  scene: Scene | undefined,
): Promise<Scene> {
  if (scene && !scene.isAlone && !isAlone && scene.settings === settings) return scene;
  if (scene) await dismiss(scene);
  const target = await startTarget(kind, settings);
  const callers = await startGoodCallers(target);
  await measureCalm(callers);
  const calmP99Ms = await measureCalm(callers);
  return { target, callers, settings, isAlone, calmP99Ms, initial: await takeStock(target) };
}

/** The 99th percentile of good callers now, in ms. */
async function measureCalm(callers: GoodCallers): Promise<number> {
  callers.begin();
  return (await callers.end(minCalls)).p99Ms;
}

async function dismiss({ target, callers }: Scene): Promise<void> {
  await callers.stop();
  expect(await target.stop(), "exit code on SIGTERM").toBe(0);
}

/** Does an attack beside good callers, and looks whether anything is left of it. */
async function withstand(scene: Scene, attack: Attack, random: Random): Promise<Done> {
  const { target, callers, isAlone, initial, calmP99Ms } = scene;
  const { service } = target;
  const logged = service.output().length;
  const isAlive = () => service.child.exitCode === null && service.child.signalCode === null;
  const stopWatching = watchProcess(service.child.pid);
  callers.begin();
  await delay(100);
  let count = 0;
  let failure: unknown;
  try {
    count = await attack.run(target, random);
  } catch (error) {
    failure = error;
  }
  target.release();
  const outcome = await callers.end(minCalls);
  const peak = stopWatching();
  const output = service.output().slice(logged);
  if (!isAlive()) {
    const last = find(output, '"level":60') ?? output.slice(-500);
    throw new Error(`the process ended with ${await service.exited}: ${last}`);
  }
  if (failure !== undefined) throw failure;

  const doubts: string[] = [];
  /** Does a check, whose failure is no more than a doubt if something else can be why. */
  const expectOrDoubt = (isDoubtful: boolean, check: () => void) => {
    try {
      check();
    } catch (error) {
      if (!isDoubtful) throw error;
      doubts.push((error as Error).message);
    }
  };
  const { calls, failures, p99Ms } = outcome;
  const first = failures.slice(0, 3).join("; ");
  const areLate = failures.every((each) => late.test(each));
  expectOrDoubt(areLate, () =>
    expect(
      1 - failures.length / calls,
      `share of ${calls} good calls: ${first}`,
    ).toBeGreaterThanOrEqual(isBusy() ? minShareBusy : minShare),
  );
  if (p99Ms > maxP99Ms && !isBusy()) {
    // A machine that is busy with other things is slow without an attack.
    const calmMs = Math.max(calmP99Ms, await measureCalm(callers));
    expectOrDoubt(true, () =>
      expect(p99Ms, "p99 of good calls in ms").toBeLessThan(Math.max(maxP99Ms, 5 * calmMs)),
    );
  }
  expect(target.leaks(), "replies").toEqual([]);
  expect(target.kind === "TLS" ? target.strangersRecords() : 0, "strangers' records").toBe(0);
  const personal = [secret, strangersText, customersText].map((text) => find(output, text));
  expect(personal.find(Boolean), "personal data in the log").toBe(undefined);
  expect(find(output, '"level":50') ?? find(output, '"level":60'), "faults in the log").toBe(
    undefined,
  );
  const { text: metrics } = await target.request("/metrics", { headers: target.greedy });
  expect(find(metrics, 'code="INTERNAL"'), "calls counted as faults").toBe(undefined);
  // V8 collects garbage late now and then, on a machine that stalls more often.
  expectOrDoubt(isAlone, () =>
    expect(peak.residentMb, "peak of memory in MB").toBeLessThan(
      isAlone ? maxResidentMb : maxResidentInRowMb,
    ),
  );
  await expect
    .poll(() => excess(target, initial), { timeout: settleMs, interval: 200 })
    .toEqual({});
  return { count, peakMb: peak.residentMb, doubts };
}

/** Whether the machine has much more to do than this test, which then tells little of times. */
function isBusy(): boolean {
  return (loadavg()[0] ?? 0) > 2 * availableParallelism();
}

/** The line of a log in which a text stands. */
function find(output: string, text: string): string | undefined {
  return output
    .split("\n")
    .find((line) => line.includes(text))
    ?.slice(0, 500);
}

async function takeStock(target: Target): Promise<Stock> {
  const [inFlight, timers] = [
    await target.metric("investor_records_rpc_server_calls_in_flight"),
    await target.metric('nodejs_active_resources{type="Timeout"}'),
  ];
  return { inFlight, timers, ...target.holdings() };
}

/** What a service holds more of than before, beyond what comes and goes by itself. */
async function excess(target: Target, before: Stock) {
  const now = await takeStock(target);
  // Memory comes back when it is needed; a leak exceeds the peak in the end.
  const allowed = { inFlight: 0, timers: 10, descriptors: 5 };
  const more = Object.entries(allowed).flatMap(([name, allowance]) => {
    const key = name as keyof typeof allowed;
    const difference = (now[key] ?? 0) - (before[key] ?? 0);
    return difference > allowance ? [[key, difference]] : [];
  });
  return Object.fromEntries(more);
}
