import { rmSync } from "node:fs";
import { dirname } from "node:path";
import { afterAll, beforeAll, describe, it } from "vitest";
import { createRandom, seedOf } from "../support/random.ts";
import { hasTool } from "../support/tools.ts";
import { runEpisodes } from "./episodes.ts";
import { compileRecorder } from "./recorded-service.ts";
import { sqliteFaults, startSqliteWorld } from "./sqlite-faults.ts";

const minutes = Number(process.env.FAULTS_MINUTES ?? 0);
const timeout = minutes * 60_000 + 600_000;
const hasTools = [hasTool("cc", ["--version"]), hasTool("prlimit", ["--version"])];

describe.runIf(hasTools.every(Boolean))("callers of a service on SQLite", () => {
  let library: string;
  beforeAll(() => {
    library = compileRecorder();
  });
  afterAll(() => rmSync(dirname(library), { recursive: true }));

  it("are told the truth, whatever happens to its disk, its files, its clock and its process", {
    timeout,
  }, async () => {
    const random = createRandom(seedOf("SQLite history"));
    const start = () => startSqliteWorld(library, random);
    const totals = await runEpisodes({ start, faults: sqliteFaults, random, minutes });
    console.log(`SQLite history: ${JSON.stringify(totals)}`);
  });
});
