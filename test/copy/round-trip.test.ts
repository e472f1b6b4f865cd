import { rmSync, statSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { MongoClient } from "mongodb";
import { expect, it, onTestFinished } from "vitest";
import { temporaryFolder } from "../support/folder.ts";
import { startLinkedSet } from "../support/linked-set.ts";
import { describeWithMongo } from "../support/mongodb.ts";
import { createRandom, seedOf } from "../support/random.ts";
import type { Run } from "../support/service.ts";
import { makeSqlite, startCopy, tableOf } from "./copying.ts";

const records = 10_000;
const bytesOfLine = 310;

/** How many records are written so far. */
type Written = () => Promise<number>;

function inSqlite(folder: string, name: string): Written {
  return async () => {
    try {
      return tableOf(folder, name).rows;
    } catch {
      // It is being made.
      return 0;
    }
  };
}

function inFile(folder: string, name: string): Written {
  const partial = join(folder, `${name}.partial`);
  return async () => (statSync(partial, { throwIfNoEntry: false })?.size ?? 0) / bytesOfLine;
}

async function inMongo(url: string): Promise<Written> {
  const client = await MongoClient.connect(url);
  onTestFinished(() => client.close());
  const collection = client.db().collection("investors");
  return () => collection.countDocuments({}, { readPreference: "primaryPreferred" }).catch(() => 0);
}

/** Waits until a copy has written so many records or has ended. */
async function reach(count: number, written: Written, { exited }: Run): Promise<void> {
  let hasEnded = false;
  exited.then(() => {
    hasEnded = true;
  });
  while (!hasEnded && (await written()) < count) await delay(5);
}

async function expectToEndWell({ exited, output }: Run): Promise<void> {
  const told = expect.stringMatching(/^copied .*\n$/m);
  expect({ code: await exited, told: output() }).toEqual({ code: 0, told });
}

await describeWithMongo("SQLite → MongoDB → NDJSON → SQLite", "set of one", (mongo) => {
  it("gives the same table, though each copy is killed again and again", {
    timeout: 180_000,
  }, async () => {
    const random = createRandom(seedOf("killed copies"));
    const folder = temporaryFolder();
    await makeSqlite(folder, "a.db", records);
    const url = mongo.url();
    let killed = 0;

    async function copyWithKills(from: string, to: string, written: Written): Promise<void> {
      for (let round = 0; round < 3; round += 1) {
        const running = startCopy([from, to], { folder });
        await reach(random.int(1, records), written, running);
        running.child.kill("SIGKILL");
        const code = await running.exited;
        if (code === "SIGKILL") killed += 1;
        else expect({ code, told: running.output() }).toMatchObject({ code: 0 });
        if (code === 0 && to.endsWith(".ndjson")) rmSync(join(folder, to));
      }
      await expectToEndWell(startCopy([from, to], { folder }));
    }

    await copyWithKills("sqlite:a.db", url, await inMongo(url));
    await copyWithKills(url, "a.ndjson", inFile(folder, "a.ndjson"));
    await copyWithKills("a.ndjson", "sqlite:b.db", inSqlite(folder, "b.db"));
    expect(killed).toBeGreaterThan(0);
    expect(tableOf(folder, "b.db")).toEqual(tableOf(folder, "a.db"));
    expect(tableOf(folder, "b.db").rows).toBe(records);
  });
});

await describeWithMongo("a MongoDB that dies and comes back", "set of one", (mongo) => {
  it.each(["to", "from"])(
    "ends a copy %s it in one line at most",
    { timeout: 180_000 },
    async (side) => {
      const random = createRandom(seedOf(`a database that dies, ${side}`));
      const folder = temporaryFolder();
      await makeSqlite(folder, "a.db", records);
      const url = mongo.url();
      if (side === "from") await expectToEndWell(startCopy(["sqlite:a.db", url], { folder }));
      const [from, to] = side === "to" ? ["sqlite:a.db", url] : [url, "sqlite:b.db"];
      const written = side === "to" ? await inMongo(url) : inSqlite(folder, "b.db");
      const running = startCopy([from, to], { folder });
      await reach(random.int(1, records / 2), written, running);
      for (const { signal } of mongo.members()) signal("SIGKILL");
      // Its process has ended by then.
      await delay(random.int(1_000, 3_000));
      await mongo.revive();
      if ((await running.exited) !== 0) expect(running.output()).toMatch(/^error: [^\n]+\n$/m);
      await expectToEndWell(startCopy([from, to], { folder }));
      if (side === "to") await expectToEndWell(startCopy([url, "sqlite:b.db"], { folder }));
      expect(tableOf(folder, "b.db")).toEqual(tableOf(folder, "a.db"));
    },
  );
});

await describeWithMongo("the same by a set of three", "standalone", () => {
  it("gives the same table, though the primary dies in each copy", {
    timeout: 180_000,
  }, async () => {
    const random = createRandom(seedOf("killed primaries"));
    const folder = temporaryFolder();
    await makeSqlite(folder, "a.db", records);
    const set = await startLinkedSet({ delayMs: 2, electionTimeoutMs: 2_000 });
    const url = set.url("copied");
    let interrupted = 0;

    async function copyThroughElection(from: string, to: string, written: Written) {
      const primary = await set.primary();
      const running = startCopy([from, to], { folder });
      await reach(random.int(1, records / 2), written, running);
      if (running.child.exitCode === null) interrupted += 1;
      set.kill(primary);
      await expectToEndWell(running);
      await set.heal();
    }

    await copyThroughElection("sqlite:a.db", url, await inMongo(url));
    await copyThroughElection(url, "a.ndjson", inFile(folder, "a.ndjson"));
    await expectToEndWell(startCopy(["a.ndjson", "sqlite:b.db"], { folder }));
    expect(interrupted).toBeGreaterThan(0);
    expect(tableOf(folder, "b.db")).toEqual(tableOf(folder, "a.db"));
    expect(tableOf(folder, "b.db").rows).toBe(records);
  });
});
