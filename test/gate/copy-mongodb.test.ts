import { once } from "node:events";
import { rmSync, statSync } from "node:fs";
import { createServer, type Socket } from "node:net";
import { join } from "node:path";
import { UUID } from "mongodb";
import { expect, it } from "vitest";
import {
  copyHere,
  makeSqlite,
  removeHere,
  rowsOf,
  startCopy,
  tableOf,
} from "../support/copying.ts";
import { temporaryFolder } from "../support/folder.ts";
import { connectTo, describeWithMongo, findMembers } from "../support/mongodb.ts";
import { createRandom, seedOf } from "../support/random.ts";
import { end, hasEnded, type Run, waitFor } from "../support/service.ts";
import { listen } from "../support/tcp.ts";

const records = 10_000;
const bytesOfLine = 310;

/** How many records are written so far. */
type Written = () => number | Promise<number>;

async function inMongo(url: string): Promise<Written> {
  const client = await connectTo(url);
  const collection = client.db().collection("investors");
  return () => collection.countDocuments({}, { readPreference: "primaryPreferred" }).catch(() => 0);
}

async function expectToEndWell({ exited, output }: Run): Promise<void> {
  const told = expect.stringMatching(/^copied .*\n$/m);
  expect({ code: await exited, told: output() }).toEqual({ code: 0, told });
}

/** Copies from SQLite to MongoDB, on to a file and back to SQLite, and expects the same table. */
async function copyAround(
  url: string,
  copyOne: (start: () => Run, written: Written) => Promise<void>,
): Promise<void> {
  const folder = temporaryFolder();
  await makeSqlite(folder, "a.db", records);
  const copyTo = (from: string, to: string, written: Written) => {
    const start = () => {
      // A file that is there would be refused.
      rmSync(join(folder, to), { force: true });
      return startCopy([from, to], { folder });
    };
    return copyOne(start, written);
  };
  await copyTo("sqlite:a.db", url, await inMongo(url));
  const partial = join(folder, "a.ndjson.partial");
  const sizeOfPartial = () => statSync(partial, { throwIfNoEntry: false })?.size ?? 0;
  await copyTo(url, "a.ndjson", () => sizeOfPartial() / bytesOfLine);
  await copyTo("a.ndjson", "sqlite:b.db", () => rowsOf(folder, "b.db"));
  expect(tableOf(folder, "b.db")).toEqual(tableOf(folder, "a.db"));
  expect(tableOf(folder, "b.db").rows).toBe(records);
}

describeWithMongo("a copy to and from MongoDB", "set of three", (mongo) => {
  it("names and leaves out a record that is wrong, and copies the others", async () => {
    const folder = temporaryFolder();
    const [first, second] = await makeSqlite(folder, "a.db", 5);
    const url = mongo.url();
    await copyHere(["sqlite:a.db", url], { folder });
    const db = (await connectTo(url)).db();
    const collection = db.collection<{ _id: UUID }>("investors");
    const key = (id = "") => ({ _id: new UUID(id) });
    await collection.updateOne(key(first?.id), { $set: { zipCode: 12345, type: "fund" } });
    await collection.updateOne(key(second?.id), { $unset: { city: 1 } });
    expect(await copyHere([url, "sqlite:b.db"], { folder })).toEqual({
      code: 1,
      told:
        `error: record ${first?.id}: type must be individual or institution; zipCode must be a string\n` +
        `error: record ${second?.id}: city is required\n` +
        "error: left out 2 records; copied 3 records, and found 0 already there\n",
    });
    // As the page says.
    for (const record of [first, second]) await removeHere(folder, url, record?.id ?? "");
    expect(await copyHere([url], { folder })).toMatchObject({ code: 0 });
  });

  it("says that a source without records is none, and does not make it", async () => {
    const url = mongo.url();
    expect(await copyHere([url, "out.ndjson"], { folder: temporaryFolder() })).toEqual({
      code: 1,
      told: expect.stringMatching(/^error: cannot read mongodb:[^\n]*: it holds no records\n$/),
    });
    const client = await connectTo(url);
    expect(await client.db().listCollections().toArray()).toEqual([]);
  });

  it("gives the same table, though each copy is killed once, and then the primary", async () => {
    const random = createRandom(seedOf("killed copies"));
    let interrupted = 0;
    /** Starts a copy, and waits until it has written some of the records, or has ended. */
    async function startSome(start: () => Run, written: Written): Promise<Run> {
      const running = start();
      const count = random.int(1, records / 2);
      await waitFor(async () => hasEnded(running.child) || (await written()) >= count);
      if (!hasEnded(running.child)) interrupted += 1;
      return running;
    }
    await copyAround(mongo.url(), async (start, written) => {
      const killed = await startSome(start, written);
      await end(killed, "SIGKILL");
      const [primary] = await findMembers(mongo);
      const running = await startSome(start, written);
      primary?.signal("SIGKILL");
      await expectToEndWell(running);
      await mongo.revive();
    });
    expect(interrupted).toBeGreaterThan(1);
  });
});

it("is stopped by a signal at once while MongoDB does not reply", async () => {
  const silent = createServer();
  const url = `mongodb://127.0.0.1:${await listen(silent)}/x`;
  const folder = temporaryFolder();
  await makeSqlite(folder, "a.db", 1);
  for (const args of [
    ["sqlite:a.db", url],
    [url, "sqlite:b.db"],
  ]) {
    const running = startCopy(args, { folder });
    const [socket] = (await once(silent, "connection")) as [Socket];
    expect(await end(running)).toBe(143);
    // It would say so if it did not wait for what is pending.
    expect(running.output()).toBe("stopped by SIGTERM\n");
    socket.destroy();
  }
});
