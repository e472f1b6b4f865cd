import { setTimeout as delay } from "node:timers/promises";
import { v4 } from "uuid";
import { expect, it } from "vitest";
import { describeWithMongo } from "../support/mongodb.ts";
import { createRandom, type Random, seedOf } from "../support/random.ts";
import { type Service, startService } from "../support/service.ts";
import { startCallers } from "./callers.ts";
import { type FaultOf, runEpisodes, type World } from "./episodes.ts";
import { type Disturbance, type LinkedSet, startLinkedSet } from "./linked-set.ts";

const minutes = Number(process.env.FAULTS_MINUTES ?? 0);
const timeout = minutes * 60_000 + 300_000;

/** Two services on one database of a set of three, and their callers. */
interface MongoWorld extends World {
  readonly set: LinkedSet;
  startService(): Promise<Service>;
}

type Fault = FaultOf<MongoWorld>;

/** By name; those that every run makes happen. */
const usualFaults: Record<string, Fault> = {
  "kill -9 of the primary": election("kill"),
  "a primary that is stopped": election("pause"),
  "a primary that is cut off": election("isolate"),

  async "a stepdown"({ set, callers }) {
    const primary = await set.primary();
    await callers.acknowledgements(1);
    await set.stepDown();
    await successor(set, primary);
  },

  async "a majority that is stopped"({ set }, random) {
    const primary = await set.primary();
    for (const member of members) if (member !== primary) set.pause(member);
    await delay(random.int(1_000, 4_000));
  },

  async "a set that dies"({ set, callers }, random) {
    await callers.acknowledgements(1);
    for (const member of members) set.kill(member);
    await delay(random.int(0, 500));
  },
};

/** By name; those of which some happen in each run, and all in a long one. */
const otherFaults: Record<string, Fault> = {
  "requests that are held": disturbed("requests are held"),
  "replies that are held": disturbed("replies are held"),
  "replies that are cut off": disturbed("replies are cut"),
  "kill -9 of a service": killService,

  /** Its requests arrive after its death. */
  async "kill -9 of a service whose requests are on the way"(world, random) {
    world.set.disturbClients("requests are held");
    await delay(random.int(100, 500));
    await killService(world, random);
  },

  async "a service that is stopped for a while"({ callers }, random) {
    const { child } = random.pick(callers.services);
    child.kill("SIGSTOP");
    await delay(random.int(500, 4_000));
    child.kill("SIGCONT");
  },

  async "an election behind bad connections"({ set }, random) {
    const primary = await set.primary();
    set.disturbClients(random.pick(["replies are held", "replies are cut"]));
    await delay(random.int(0, 300));
    set[random.pick(["kill", "pause", "isolate"] as const)](primary);
    await delay(random.int(2_500, 5_000));
  },
};

const members = [0, 1, 2];

/** Another member is elected, and the old primary comes back later. */
function election(how: "kill" | "pause" | "isolate"): Fault {
  return async ({ set, callers }, random) => {
    const primary = await set.primary();
    await delay(random.int(0, 500));
    await callers.acknowledgements(1);
    set[how](primary);
    if (await successor(set, primary)) callers.history.count("elections");
    await delay(random.int(500, 2_000));
  };
}

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

function disturbed(disturbance: Disturbance): Fault {
  return async ({ set }, random) => {
    set.disturbClients(disturbance);
    await delay(random.int(500, 4_000));
  };
}

async function killService({ callers, startService }: MongoWorld, random: Random): Promise<void> {
  const { services } = callers;
  const [service] = services.splice(random.int(0, services.length - 1), 1);
  service?.child.kill("SIGKILL");
  await service?.exited;
  services.push(await startService());
}

async function startWorld(set: LinkedSet, random: Random): Promise<MongoWorld> {
  const settings = { DATABASE_URL: set.url(`test-${v4()}`), REQUEST_TIMEOUT: "3s" };
  const start = () => startService(settings);
  const services = [await start(), await start()];
  return {
    callers: startCallers(services, random),
    set,
    startService: start,
    recover: () => set.heal(),
    startFresh: start,
    async end() {
      for (const { child } of services) child.kill("SIGKILL");
    },
  };
}

await describeWithMongo("callers of two services on a set of three", "standalone", () => {
  it("are told the truth, whatever happens to the set, its connections and the services", {
    timeout,
  }, async () => {
    const random = createRandom(seedOf("MongoDB history"));
    const others = random.shuffle(Object.entries(otherFaults));
    const some = Object.fromEntries(minutes > 0 ? others : others.slice(0, 3));
    const set = await startLinkedSet();
    const start = () => startWorld(set, random);
    const totals = await runEpisodes(start, { ...usualFaults, ...some }, random, minutes);
    console.log(`MongoDB history: ${JSON.stringify(totals)}`);
    expect(totals.elections).toBeGreaterThanOrEqual(2);
  });
});
