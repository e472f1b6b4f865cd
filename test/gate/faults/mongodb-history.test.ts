// Takes two minutes: an election takes seconds, and so does each member's way back into the set.
import { setTimeout as delay } from "node:timers/promises";
import { MongoClient } from "mongodb";
import { v4, v7 } from "uuid";
import { describe, expect, it } from "vitest";
import { needsMongo } from "../../support/mongodb.ts";
import type { Random } from "../../support/random.ts";
import { aCreate } from "../../support/records.ts";
import { end, grpcClient, type Service, startService, waitFor } from "../../support/service.ts";
import { sendCreate, startCallers } from "./callers.ts";
import { type FaultOf, minutes, runEpisodes, timeout, type World } from "./episodes.ts";
import { type LinkedSet, startLinkedSet } from "./linked-set.ts";

/** Two services on one database of a set of three, and their callers. */
interface MongoWorld extends World {
  readonly set: LinkedSet;
  startService(): Promise<Service>;
}

type Fault = FaultOf<MongoWorld>;

const members = [0, 1, 2];

/**
 * How long after a bare driver's first write on a new primary calls may go on, in milliseconds; without
 * minutes, the machine does much else.
 */
const toleranceMs = minutes > 0 ? 2_000 : 20_000;

const faults: Record<string, Fault> = {
  "kill -9 of the primary": election("kill"),
  "a primary that is stopped": election("pause"),
  "a primary that is cut off": election("isolate"),

  async "a stepdown"({ set }) {
    await set.stepDown();
    await set.primary();
  },

  async "a majority that is stopped"({ set }, random) {
    const primary = await set.primary();
    for (const member of members) if (member !== primary) set.pause(member);
    await delay(random.int(1_000, 4_000));
  },

  async "a set that dies"({ set }, random) {
    await Promise.all(members.map((member) => set.kill(member)));
    await delay(random.int(0, 500));
  },

  "replies that are held": disturbed("held"),
  "replies that are cut off": disturbed("cut"),

  async "an election behind bad connections"({ set }, random) {
    const primary = await set.primary();
    set.disturbReplies(random.pick(["held", "cut"]));
    await delay(random.int(0, 300));
    await set[random.pick(["kill", "pause", "isolate"] as const)](primary);
    await delay(random.int(2_500, 5_000));
  },

  /** A service goes on soon after a bare driver could, also if its calls have much time. */
  async "a primary that freezes"({ set, callers: { history }, startFresh }) {
    const service = await startFresh();
    const client = grpcClient(service);
    await using bare = await MongoClient.connect(set.url("bare"));
    const writes = bare.db().collection("writes", { writeConcern: { w: "majority" } });
    const create = async () => {
      const failure = await sendCreate(history, client, aCreate({ requestId: v7() }));
      if (failure) throw new Error(failure.message);
    };
    await writes.insertOne({});
    await untilOne(create);
    const id = history.visible.at(-1) ?? "";
    set.pause(await set.primary());
    const calls = [
      untilOne(create),
      untilOne(() => client.getInvestor({ id })),
      untilOne(() => client.listInvestors({ pageSize: 10 })),
    ];
    await untilOne(() => writes.insertOne({}));
    const isLate = delay(toleranceMs, "late");
    expect(await Promise.race([Promise.all(calls), isLate])).not.toBe("late");
    await end(service, "SIGKILL");
  },

  async "kill -9 of a service"({ callers, startService }, random) {
    const { services } = callers;
    const [service] = services.splice(random.int(0, services.length - 1), 1);
    service?.child.kill("SIGKILL");
    await service?.exited;
    services.push(await startService());
  },

  async "a service that is stopped for a while"({ callers }, random) {
    const { child } = random.pick(callers.services);
    child.kill("SIGSTOP");
    await delay(random.int(500, 4_000));
    child.kill("SIGCONT");
  },
};

/** Tries again and again, without waiting for what was tried before, until one attempt succeeds. */
async function untilOne(attempt: () => Promise<unknown>): Promise<void> {
  let hasSucceeded = false;
  while (!hasSucceeded) {
    attempt().then(
      () => {
        hasSucceeded = true;
      },
      () => {},
    );
    await delay(100);
  }
}

/** Another member is elected, and the old primary comes back later. */
function election(how: "kill" | "pause" | "isolate"): Fault {
  return async ({ set, callers }, random) => {
    const primary = await set.primary();
    await callers.acknowledgements(1);
    await set[how](primary);
    await waitFor(async () => (await set.primary()) !== primary);
    await delay(random.int(500, 2_000));
  };
}

function disturbed(how: "held" | "cut"): Fault {
  return async ({ set }, random) => {
    set.disturbReplies(how);
    await delay(random.int(500, 4_000));
  };
}

async function startWorld(set: LinkedSet, random: Random): Promise<MongoWorld> {
  const DATABASE_URL = set.url(`test-${v4()}`);
  const start = (REQUEST_TIMEOUT = "3s") => startService({ DATABASE_URL, REQUEST_TIMEOUT });
  const services = [await start(), await start()];
  return {
    callers: startCallers(services, random),
    set,
    startService: start,
    recover: () => set.heal(),
    startFresh: () => start("10m"),
    async end() {
      for (const { child } of services) child.kill("SIGKILL");
    },
  };
}

describe("callers of two services on a set of three", needsMongo(), () => {
  it("lose nothing that was acknowledged, and have nothing twice, through all faults", {
    timeout,
  }, async () => {
    const set = await startLinkedSet();
    await runEpisodes("MongoDB history", (random) => startWorld(set, random), faults);
  });
});
