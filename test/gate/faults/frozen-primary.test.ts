// Takes a minute: the primary is frozen for fifteen seconds, and an election takes some of them.
import { setTimeout as delay } from "node:timers/promises";
import { v7 } from "uuid";
import { expect, it } from "vitest";
import { failureOf } from "../../support/errors.ts";
import { connectTo, describeWithMongo, findMembers } from "../../support/mongodb.ts";
import { createRandom, seedOf } from "../../support/random.ts";
import { aCreate } from "../../support/records.ts";
import { ask, grpcClient, startService, waitFor } from "../../support/service.ts";
import { startCallers } from "./callers.ts";
import { minutes, runEpisodes, timeout } from "./episodes.ts";

/** How long the primary is frozen, and how often each kind of call is tried, in milliseconds. */
const frozenMs = 15_000;
const tryMs = 100;

/**
 * How long after a bare driver's first write on the new primary calls may go on, in milliseconds;
 * without minutes, the machine does much else.
 */
const toleranceMs = minutes > 0 ? 2_000 : 20_000;

/** The time until the first of many attempts succeeds, in milliseconds; none waits for another. */
async function untilFirst(attempt: () => Promise<unknown>): Promise<number> {
  const start = performance.now();
  let first = Number.POSITIVE_INFINITY;
  const note = () => {
    first = Math.min(first, performance.now() - start);
  };
  while (first === Number.POSITIVE_INFINITY) {
    attempt().then(note, () => {});
    await delay(tryMs);
  }
  return first;
}

describeWithMongo("callers of a service on a set of three", "set of three", (mongo) => {
  it("go on soon after a bare driver could, if the primary freezes", { timeout }, async () => {
    const random = createRandom(seedOf("frozen primary"));
    const bare = await connectTo(mongo.url(), { serverSelectionTimeoutMS: 30_000 });
    const writes = bare.db().collection("writes", { writeConcern: { w: "majority" } });

    const startWorld = async () => {
      const url = mongo.url();
      const start = (settings = {}) => startService({ DATABASE_URL: url, ...settings });
      const service = await start();
      const ready = async () => (await ask(service, "/readyz")).ok;
      await waitFor(ready);
      return {
        callers: startCallers([service], random),
        service,
        ready,
        async recover() {
          for (const { signal } of mongo.members()) signal("SIGCONT");
        },
        startFresh: () => start({ REQUEST_TIMEOUT: "10m" }),
        end: async () => void service.child.kill("SIGKILL"),
      };
    };

    const freeze = async ({ callers, service, ready }: Awaited<ReturnType<typeof startWorld>>) => {
      await callers.acknowledgements(50);
      const client = grpcClient(service);
      const create = () => {
        const request = aCreate({ requestId: v7() });
        const call = callers.history.create(request);
        const creating = client.createInvestor(request);
        creating.then(call.acknowledged, async () => call.failed(await failureOf(creating)));
        return creating;
      };
      const { id } = await create();
      const [primary] = await findMembers(mongo);
      await writes.insertOne({});
      primary?.signal("SIGSTOP");
      const thaw = delay(frozenMs).then(() => primary?.signal("SIGCONT"));
      const [driver = 0, ...calls] = await Promise.all([
        untilFirst(() => writes.insertOne({})),
        untilFirst(create),
        untilFirst(() => client.getInvestor({ id })),
        untilFirst(() => client.listInvestors({ pageSize: 10 })),
      ]);
      const rounded = calls.map((ms) => Math.round(ms - driver)).join(", ");
      console.log(`driver after ${Math.round(driver)} ms; create, get, page later by: ${rounded}`);
      for (const ms of calls) expect(ms).toBeLessThan(driver + toleranceMs);
      await waitFor(ready);
      await create();
      await thaw;
    };

    await runEpisodes(startWorld, { "a primary that freezes": freeze }, random);
  });
});
