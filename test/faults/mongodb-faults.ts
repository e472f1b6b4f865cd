/** What can happen to two services on a set of three, and to the set, while they are called. */
import { setTimeout as delay } from "node:timers/promises";
import { v4 } from "uuid";
import type { Direction, Disturbance, LinkedSet } from "../support/linked-set.ts";
import type { Random } from "../support/random.ts";
import { type Service, startService } from "../support/service.ts";
import { startCallers } from "./callers.ts";
import type { FaultOf, World } from "./episodes.ts";

/** Two services on one database, and their callers. */
export interface MongoWorld extends World {
  readonly set: LinkedSet;
  startService(): Promise<Service>;
}

type Fault = FaultOf<MongoWorld>;

/** Starts them on a database of their own. */
export async function startMongoWorld(
  set: LinkedSet,
  random: Random,
  env: NodeJS.ProcessEnv = {},
): Promise<MongoWorld> {
  const settings = { DATABASE_URL: set.url(`test-${v4()}`), REQUEST_TIMEOUT: "3s", ...env };
  const services = [await startService(settings), await startService(settings)];
  return {
    callers: startCallers(services, random),
    set,
    startService: () => startService(settings),
    recover: () => set.heal(),
    startFresh: () => startService(settings),
    describe: () => set.describe(),
    async end() {
      for (const { child } of services) child.kill("SIGKILL");
    },
  };
}

const members = [0, 1, 2];

/**
 * Waits for another primary, though not for ever: a busy machine may keep them from voting.
 *
 * @returns whether there is one
 */
async function successor(set: LinkedSet, primary: number): Promise<boolean> {
  const end = performance.now() + 20_000;
  while (performance.now() < end) {
    if ((await set.primary().catch(() => primary)) !== primary) return true;
    await delay(100);
  }
  return false;
}

/** Another member is elected, and the old primary comes back later. */
function election(how: "kill" | "pause" | "isolate"): Fault {
  return async ({ set, callers }, random) => {
    const primary = await set.primary();
    await delay(random.int(0, 500));
    await callers.acknowledgements(1);
    set[how](primary);
    const { counts } = callers.history;
    if (await successor(set, primary)) counts.elections = (counts.elections ?? 0) + 1;
    await delay(random.int(500, 2_000));
  };
}

const stepDown: Fault = async ({ set, callers }) => {
  const primary = await set.primary();
  await callers.acknowledgements(1);
  await set.stepDown(primary);
  await successor(set, primary);
};

function lossOfMajority(how: "kill" | "pause"): Fault {
  return async ({ set }, random) => {
    const primary = await set.primary();
    for (const member of members) if (member !== primary) set[how](member);
    await delay(random.int(1_000, 4_000));
  };
}

const lossOfAll: Fault = async ({ set, callers }, random) => {
  await callers.acknowledgements(1);
  for (const member of members) set.kill(member);
  await delay(random.int(0, 500));
};

function disturbed(choose: (random: Random) => Disturbance): Fault {
  return async ({ set, callers }, random) => {
    const disturbance = choose(random);
    callers.history.note(JSON.stringify(disturbance));
    set.disturbClients(disturbance);
    await delay(random.int(500, 4_000));
  };
}

/** A service dies while its requests hang on the way, which arrive after its death. */
const deathOnTheWay: Fault = async (world, random) => {
  world.set.disturbClients({ kind: "hold", direction: directionOf(random) });
  await delay(random.int(100, 500));
  await killOfService(world, random);
};

/** A disturbance and an election at once. */
const disturbedElection: Fault = async (world, random) => {
  const primary = await world.set.primary();
  world.set.disturbClients(
    random.pick<Disturbance>([
      { kind: "delay", ms: random.int(50, 400) },
      { kind: "hold", direction: "replies" },
      { kind: "cut" },
    ]),
  );
  await delay(random.int(0, 300));
  world.set[random.pick(["kill", "pause", "isolate"] as const)](primary);
  await delay(random.int(2_500, 5_000));
};

const killOfService: Fault = async ({ callers, startService }, random) => {
  const { services } = callers;
  const index = random.int(0, services.length - 1);
  const [service] = services.splice(index, 1);
  service?.child.kill("SIGKILL");
  await service?.exited;
  services.push(await startService());
};

const pauseOfService: Fault = async ({ callers }, random) => {
  const { child } = random.pick(callers.services);
  child.kill("SIGSTOP");
  await delay(random.int(500, 4_000));
  child.kill("SIGCONT");
};

const directionOf = (random: Random): Direction => random.pick(["requests", "replies"]);

/** By name. */
export const mongoFaults: Record<string, Fault> = {
  "kill -9 of the primary": election("kill"),
  "a primary that is stopped": election("pause"),
  "a primary that is cut off": election("isolate"),
  "a stepdown": stepDown,
  "a majority that is stopped": lossOfMajority("pause"),
  "a majority that dies": lossOfMajority("kill"),
  "a set that dies": lossOfAll,
  "slow connections": disturbed((random) => ({ kind: "delay", ms: random.int(50, 900) })),
  "connections that hold back": disturbed((random) => ({
    kind: "hold",
    direction: directionOf(random),
  })),
  "connections that swallow": disturbed((random) => ({
    kind: "drop",
    direction: directionOf(random),
  })),
  "replies that are cut off": disturbed(() => ({ kind: "cut" })),
  "half-closed connections": disturbed((random) => ({
    kind: "half-close",
    direction: directionOf(random),
  })),
  "kill -9 of a service": killOfService,
  "kill -9 of a service whose requests are on the way": deathOnTheWay,
  "a service that is stopped for a while": pauseOfService,
  "an election behind bad connections": disturbedElection,
};
