import type { createMongoStore } from "../../src/store/mongodb.ts";
import type { Store } from "../../src/store/store.ts";
import { createRandom, type Random } from "../support/random.ts";
import { History } from "./simulated-history.ts";
import type { Member } from "./simulated-set.ts";
import { World } from "./simulated-world.ts";
import type { Mutant } from "./simulation-mutants.ts";

const requestTimeoutMs = 400;
const attemptMs = requestTimeoutMs / 4;

/** Takes the least of all that is possible: what is fast, whole and without faults. */
const calm: Random = {
  seed: 0,
  int: (min) => min,
  pick: ([first]) => first as never,
  shuffle: (items) => [...items],
};

/** One schedule: a world, some stores on it, and what was seen. */
export interface Simulation {
  readonly world: World;
  readonly history: History;
  open(): Store;
}

/** Begins simulations; `enter` makes their world the one that the product runs in. */
export function createSimulator(createStore: typeof createMongoStore, enter: (w: World) => void) {
  function begin(random: Random, electable: number, mutant: Mutant): Simulation {
    const world = new World(random, electable, mutant.command);
    enter(world);
    const options = { requestTimeoutMs, observe: () => {} };
    const open = () => mutant.store(createStore("mongodb://simulated", options));
    return { world, open, history: new History(world, 3 * attemptMs) };
  }

  /** Runs the schedule of a seed. */
  async function runSeed(seed: number, mutant: Mutant): Promise<History> {
    const random = createRandom(seed);
    const simulation = begin(random, random.pick([3, 3, 2, 1]), mutant);
    const { world, history } = simulation;
    const stores = [simulation.open(), simulation.open()];
    const used: string[] = [uuid(500), uuid(501)];
    for (let i = random.int(2, 4); i > 0; i -= 1) void call(simulation, stores, used);
    for (let i = random.int(1, 3); i > 0; i -= 1) void disturb(world);
    await run(world);
    await end(simulation);
    return history;
  }

  const beginCalm = (mutant: Mutant) => begin(calm, 3, mutant);

  return { beginCalm, runSeed };
}

/** Heals everything, and looks at what is stored. */
export async function end({ world, history, open }: Simulation): Promise<void> {
  const { set } = world;
  world.random = calm;
  set.isolated.clear();
  for (const member of set.members) member.isUp = true;
  await run(world);
  for (const member of set.members) {
    if (!set.members.some(({ isPrimary }) => isPrimary)) set.elect(member);
  }
  await run(world);
  const finish = history.finish(open(), 3);
  await run(world);
  await finish;
}

/** Lets everything happen, in an order of the world's random choices. */
export async function run(world: World): Promise<void> {
  const { random } = world;
  const pace = random.int(10, 90);
  const rates = new Map<string, number>();
  for (;;) {
    await settled();
    const [first, ...rest] = world.steps;
    const next = rest.reduce((a, b) => (a && b.due >= a.due ? a : b), first);
    const isSoon = next !== undefined && next.due < world.now + 20;
    const acts = next === undefined || random.int(1, 100) <= (isSoon ? pace : 95);
    const actions = acts ? world.actions() : [];
    const [label, act] = actions.length > 0 ? random.pick(actions) : ["", undefined];
    // Some members and monitors are slower than others.
    const rate = rates.get(label) ?? random.pick([100, 100, 100, 10]);
    rates.set(label, rate);
    if (act && (next === undefined || random.int(1, 100) <= rate)) act();
    else if (next !== undefined) world.take(next);
    else return;
  }
}

/** Resolves when all that has begun waits for a step. */
export function settled(): Promise<void> {
  // Runs when no promise has anything to do.
  return new Promise((resolve) => process.nextTick(resolve));
}

async function call({ world, history }: Simulation, stores: Store[], used: string[]) {
  const { random } = world;
  for (let i = random.int(2, 6); i > 0; i -= 1) {
    await pause(world, random.int(0, 1) * random.int(0, 40));
    const store = random.pick(stores);
    const controller = new AbortController();
    const isCut = random.int(1, 10) === 10;
    if (isCut)
      void pause(world, random.int(0, 200)).then(() => controller.abort(new Error("left")));
    const { signal } = controller;
    const kind = random.int(1, 10);
    if (kind <= 4) {
      const id = uuid(random.int(0, 999));
      used.push(id);
      await history.insert(store, id, `own ${used.length}`, signal);
    } else if (kind === 5) {
      const content = random.pick(["one", "other"]);
      await history.insert(store, random.pick(used.slice(0, 2)), content, signal);
    } else if (kind <= 8) {
      const id = random.pick([used.at(-1) as string, random.pick(used)]);
      await history.find(store, id, signal);
    } else {
      const after = random.pick([undefined, random.pick(used)]);
      await history.list(store, { after, limit: random.int(1, 5) }, signal);
    }
  }
}

async function disturb(world: World): Promise<void> {
  const { random, set } = world;
  await pause(world, random.int(0, 80));
  const primary = set.members.find(({ isPrimary }) => isPrimary) ?? random.pick(set.members);
  const kind = random.int(1, 8);
  if (kind === 1) random.pick(world.clients).cut();
  else if (kind <= 3) set.elect(random.pick(set.members));
  else if (kind <= 6) {
    set.isolated.add(primary);
    await electSome(world);
    set.isolated.delete(primary);
  } else {
    const member = kind === 7 ? primary : random.pick(set.members);
    crash(world, member);
    await electSome(world);
    member.isUp = true;
  }
  await electSome(world);
}

async function electSome(world: World): Promise<void> {
  for (let i = 0; i < 2; i += 1) {
    await pause(world, world.random.int(0, 80));
    const { members } = world.set;
    const newest = Math.max(...members.map(({ term }) => term));
    const isLed = members.some((each) => each.isPrimary && each.term === newest && each.isUp);
    const isHidden = [...world.set.isolated].some(({ isPrimary }) => isPrimary);
    if (!isLed || isHidden) world.set.elect(world.random.pick(members));
  }
}

function crash(world: World, member: Member): void {
  world.set.crash(member);
  // The host may be gone as well, and tell nobody.
  if (world.random.int(0, 1) === 0) for (const client of world.clients) client.cut(member);
}

function pause(world: World, ms: number): Promise<void> {
  return new Promise((resolve) => {
    world.timer(ms, resolve);
  });
}

/** An id that ends in a number below 1,000. */
export function uuid(number: number): string {
  return `00000000-0000-7000-8000-${String(number).padStart(12, "0")}`;
}
