import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { createMongoStore } from "../../src/store/mongodb.ts";
import { seedOf } from "../support/random.ts";
import { explore } from "./simulated-orders.ts";
import type { DriverOptions, Step, World } from "./simulated-world.ts";
import { createSimulator } from "./simulation.ts";
import { mutants, original } from "./simulation-mutants.ts";

const current = vi.hoisted(() => ({ world: undefined as World | undefined }));

vi.mock("mongodb", async (load) => ({
  ...(await load<object>()),
  MongoClient: function connect(_url: string, options: DriverOptions) {
    return current.world?.connect(options);
  },
}));

vi.mock("node:timers/promises", () => ({
  setTimeout: (ms: number) => new Promise((resolve) => setTimeout(resolve, ms)),
}));

const minutes = Number(process.env.FAULTS_MINUTES ?? 0);
/** A schedule takes 1 ms. */
const schedules = process.env.SEED === undefined ? 100_000 : 1;
const testTimeout = minutes * 60_000 + (minutes ? 7_200_000 : 600_000);

const { beginCalm, runSeed } = createSimulator(createMongoStore, (world) => {
  current.world = world;
});

beforeAll(() => {
  vi.stubGlobal("performance", { now: () => current.world?.now });
  vi.stubGlobal("setTimeout", (run: () => void, ms: number) => current.world?.timer(ms, run));
  vi.stubGlobal("clearTimeout", (step: Step) => current.world?.cancel(step));
  Error.stackTraceLimit = 0;
});

afterAll(() => {
  vi.unstubAllGlobals();
  Error.stackTraceLimit = 10;
});

describe("a store on a simulated replica set", () => {
  const parts = [
    { name: "two ids, without a cut", hasOneId: false, without: ["cut"] },
    { name: "one id, without a cut", hasOneId: true, without: ["cut"] },
    { name: "one id, without reads", hasOneId: true, without: ["get", "page"] },
  ];
  // Hundreds of thousands of states.
  const whole = [
    { name: "two ids", hasOneId: false, without: [] },
    { name: "one id", hasOneId: true, without: [] },
  ];
  it.for(minutes ? whole : parts)(
    "keeps its promises in all orders of $name",
    {
      timeout: testTimeout,
    },
    async ({ name, hasOneId, without }) => {
      const begin = () => beginCalm(original());
      const { orders, states, violations } = await explore(begin, hasOneId, without);
      console.log(`simulation: ${orders} orders of ${name}, ${states} states`);
      expect([...violations]).toEqual([]);
      expect(orders).toBeGreaterThan(1_000_000n);
    },
  );

  it("keeps its promises in schedules of many seeds", { timeout: testTimeout }, async () => {
    const first = seedOf("simulation");
    const counts: Record<string, number> = {};
    const end = Date.now() + minutes * 60_000;
    let seed = first;
    for (; minutes ? Date.now() < end : seed < first + schedules; seed += 1) {
      const history = await runSeed(seed, original());
      expect(history.violations, `SEED=${seed}`).toEqual([]);
      for (const [what, n] of Object.entries(history.counts))
        counts[what] = (counts[what] ?? 0) + n;
    }
    console.log(`simulation: ${seed - first} schedules`, counts);
  });
});

describe("the simulation", () => {
  it.for(Object.entries(mutants))("finds %s", { timeout: testTimeout }, async ([name, mutant]) => {
    const { create, shows, within } = mutant;
    const isFound = (violations: Iterable<string>) =>
      Array.from(violations).some((each) => shows.test(each));
    if (within === undefined) {
      const { states, violations } = await explore(
        () => beginCalm(create()),
        false,
        ["cut"],
        isFound,
      );
      console.log(`simulation: ${name} is found after ${states} states`);
      expect(isFound(violations)).toBe(true);
      expect(states).toBeLessThan(5_000);
      return;
    }
    const first = seedOf(name);
    let seed = first;
    while (!isFound((await runSeed(seed, create())).violations)) {
      seed += 1;
      expect(seed, "seeds without a contradiction").toBeLessThan(first + within);
    }
    console.log(`simulation: ${name} is found by seed ${seed - first + 1}`);
  });
});
