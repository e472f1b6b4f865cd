import { hash } from "node:crypto";
import type { Store } from "../../src/store/store.ts";
import type { History } from "./simulated-history.ts";
import type { Member } from "./simulated-set.ts";
import type { World } from "./simulated-world.ts";
import { end, run, type Simulation, settled, uuid } from "./simulation.ts";

/** What was looked at, and what it contradicts. */
export interface Orders {
  /** How many orders of all steps there are. */
  orders: bigint;
  /** How many states they lead through, each looked at once. */
  states: number;
  violations: Set<string>;
}

type Choice = [string, () => void];

/** Timers up to this, in milliseconds, come in any order with other steps. */
const shortMs = 10;

/**
 * Looks at all orders of two creates, two reads, one election and one cut (`without` some of
 * them): of the steps of their
 * messages, of replication, and of the driver's finding a primary. What is cut off may still
 * arrive, at any later time. One process creates, then gets what the other created; that one
 * creates, then reads a page. The creates have two ids, or one id and two contents.
 *
 * Two orders of the same steps that lead to the same state go on in the same ways: of each state
 * the rest is looked at once, by running the product from the start on the way that led to it.
 */
export async function explore(
  begin: () => Simulation,
  hasOneId: boolean,
  without: string[],
  isFound: (violations: Set<string>) => boolean = () => false,
): Promise<Orders> {
  const seen = new Map<string, bigint>();
  const violations = new Set<string>();
  const path: number[] = [];

  async function visit(): Promise<bigint> {
    if (isFound(violations)) return 0n;
    const reached = await follow(begin(), hasOneId, without, path);
    for (const each of reached.simulation.history.violations) violations.add(each);
    const known = seen.get(reached.state);
    if (known !== undefined) return known;
    if (reached.choices.length === 0) {
      if (!reached.isOver) violations.add("a call does not end");
      await end(reached.simulation);
    }
    for (const each of reached.simulation.history.violations) violations.add(each);
    let orders = reached.choices.length === 0 ? 1n : 0n;
    for (let i = 0; i < reached.choices.length; i += 1) {
      path.push(i);
      orders += await visit();
      path.pop();
    }
    seen.set(reached.state, orders);
    return orders;
  }

  const orders = await visit();
  return { orders, states: seen.size, violations };
}

/** Runs a simulation along a path; returns what it has come to, and what may come next. */
async function follow(
  simulation: Simulation,
  hasOneId: boolean,
  without: string[],
  path: number[],
) {
  const { world, history, open } = simulation;
  const [p, q] = [open(), open()] as [Store, Store];
  const [one, other] = [uuid(1), uuid(hasOneId ? 1 : 2)];
  const told: string[] = [];
  const begin = (client: number, label: string, start: () => Promise<unknown>): Choice => [
    label,
    () => {
      told.push(`${label} at ${world.now} knowing ${[...history.known.keys()]}`);
      void start().then(() => {
        told.push(`${label} ends`);
        // What a process was told for a call matters until the call ends.
        world.clients[client]?.heard.splice(0);
      });
    },
  ];
  let left: Choice[] = [
    begin(0, "create 1", () => history.insert(p, one, "1")),
    begin(1, "create 2", () => history.insert(q, other, "2")),
    begin(0, "get", () => history.find(p, other)),
    begin(1, "page", () => history.list(q, { limit: 3 })),
    ["elect", () => elect(world)],
    ["cut", () => world.clients[0]?.cut()],
  ];
  left = left.filter(([label]) => !without.includes(label));
  const calls = left.filter(([label]) => label !== "elect" && label !== "cut").length;
  // Begins with a primary that all know, and that knows that it has committed.
  const connected = Promise.all([p.list({ limit: 1 }), q.list({ limit: 1 })]);
  await run(world);
  await connected;
  for (const client of world.clients) client.heard.length = 0;
  for (const index of path) {
    const [label, take] = choicesOf(world, left, told)[index] as Choice;
    left = left.filter((each) => each[0] !== label);
    take();
    await settled();
    await hearReads(world);
  }
  return {
    simulation,
    choices: choicesOf(world, left, told),
    isOver: told.filter((each) => each.endsWith(" ends")).length === calls,
    state: stateOf(world, history, told, left),
  };
}

function choicesOf(world: World, left: Choice[], told: string[]): Choice[] {
  const actions = world.actions().filter(([label]) => matters(label, world, left));
  const soon = world.steps.filter((each) => !each.isTimer || each.due - world.now <= shortMs);
  const steps = soon.map((each): Choice => [each.label, () => world.take(each)]);
  const rest = left.filter(([label]) => {
    // A cut without a connection to cut is none.
    if (label === "cut") return world.clients[0]?.isBusy;
    if (label === "get") return told.includes("create 1 ends");
    if (label === "page") return told.includes("create 2 ends");
    return true;
  });
  return [...steps, ...actions, ...rest];
}

function stateOf(world: World, { known }: History, told: string[], left: Choice[]): string {
  const state = JSON.stringify([
    world.now,
    world.set.members.map(({ term, isPrimary, committed, reported, log, waits }) => [
      [
        term,
        isPrimary,
        committed,
        reported,
        log.map((each) => [each.term, each.document?.firstName]),
      ],
      waits.map(({ label, length }) => [label, length]),
    ]),
    world.steps
      .filter(({ isTimer }) => !isTimer)
      .map(({ label }) => label)
      .sort(),
    world.clients.map((client) => client.state),
    [...known].sort(),
    [...told].sort(),
    left.map(([label]) => label),
  ]);
  return hash("sha256", state, "base64");
}

/**
 * Leaves out what no call can tell from something else: the first member makes a majority with
 * the second before the election, the third one after it; and the third one's log, and what a
 * member that will not be primary knows of the commit point, are seen by nobody.
 */
function matters(label: string, { set }: World, left: Choice[]): boolean {
  const [first, second, third] = set.members as [Member, Member, Member];
  const isElected = left.every(([each]) => each !== "elect");
  if (label === "1 pulls 0") return !isElected;
  if (label === "0 pulls 1") return isElected && first.isPrimary;
  if (!label.includes("pulls")) return true;
  return label === "2 pulls 1" && isElected && third.log.length < second.log.length;
}

/**
 * Lets reads arrive at once, and their replies: the same member would show no less later, and
 * what comes after a call that has read is of no concern to it. The no-op of a linearizable read
 * comes in any order.
 */
async function hearReads(world: World): Promise<void> {
  for (;;) {
    const reply = world.steps.find(({ label }) =>
      /^client . (majority|linearizable|hello)/.test(label),
    );
    if (!reply) return;
    world.take(reply);
    await settled();
  }
}

/** The second member wins with the vote of the third; the first one does not hear of it. */
function elect({ set }: World): void {
  const [, second, third] = set.members as [Member, Member, Member];
  set.elect(second, [second, third]);
}
