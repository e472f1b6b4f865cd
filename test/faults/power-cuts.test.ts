import { describe, it } from "vitest";
import { createRandom, type Random, seedOf } from "../support/random.ts";
import { hasTool } from "../support/tools.ts";
import { cutPower } from "./power-cuts.ts";
import { compileRecorder, type RecordedService, recordService } from "./recorded-service.ts";

type Scenario = (run: RecordedService, random: Random) => Promise<void>;

const scenarios: Record<string, Scenario> = {
  async "a clean shutdown between creates"(run, random) {
    for (const signal of ["SIGTERM", "SIGKILL"] as const) {
      const service = await run.start();
      await run.create(service, random.int(1, 100));
      await run.ended(service, signal);
    }
  },
  async "kill -9 in the middle of creates"(run, random) {
    const service = await run.start("sync * 1 0 slow:2");
    const creating = run.create(service, 200);
    await new Promise((done) => setTimeout(done, random.int(20, 200)));
    await run.ended(service, "SIGKILL");
    await creating;
    await goOn(run, random);
  },
  async "a sync of the log that loses its pages"(run, random) {
    const service = await run.start();
    run.setRules(`sync -wal ${random.int(1, 30)} 1 lost`);
    await run.create(service, 400);
    await run.ended(service);
    await goOn(run, random);
  },
  async "a sync that hangs until kill -9"(run, random) {
    const service = await run.start();
    run.setRules(`sync -wal ${random.int(1, 30)} 0 hang`);
    const creating = run.create(service, 400);
    await run.struck();
    await run.ended(service, "SIGKILL");
    await creating;
    await goOn(run, random);
  },
};

/** Starts the service again, which is asked about what happened, and stores more. */
async function goOn(run: RecordedService, random: Random): Promise<void> {
  const service = await run.start();
  await run.replay(service);
  await run.create(service, random.int(1, 50));
  await run.ended(service, "SIGKILL");
}

const checkpoints = { "synchronous = FULL": "synchronous = FULL; PRAGMA wal_autocheckpoint = 20" };

describe.runIf(hasTool("cc", ["--version"]))("a power cut", () => {
  it("try", { timeout: 600_000 }, async () => {
    const random = createRandom(seedOf("power cuts"));
    const library = compileRecorder();
    for (const [name, scenario] of Object.entries(scenarios)) {
      for (const sql of [{}, checkpoints]) {
        const t0 = performance.now();
        const run = recordService(library, random, sql);
        await scenario(run, random);
        const t1 = performance.now();
        const cuts = [...cutPower(run.evidence, random, 60)];
        const bad = cuts.filter((c) => c.problems.length > 0);
        console.log(
          name,
          t1 - t0,
          performance.now() - t1,
          run.evidence.promised.length,
          cuts.at(-1)?.position,
          bad.length,
          new Set(bad.flatMap((b) => b.problems.slice(0, 1).map((p) => p.slice(-40)))),
        );
      }
    }
  });
});
