import type { Db } from "mongodb";
import { createMongoClient, databaseOf } from "../store/mongodb.ts";
import { attempt } from "../store/mongodb-attempt.ts";
import { collectionName } from "../store/mongodb-document.ts";
import { createMongoReader } from "../store/mongodb-reader.ts";
import type { Source } from "./endpoint.ts";

const pageSize = 1_000;

/**
 * Opens a MongoDB database to copy from. It sees every record that was acknowledged before.
 *
 * @param attemptMs timeout of an attempt to read, of which there are two, in milliseconds
 * @throws {Error} if it cannot be reached
 */
export async function openMongoSource(url: string, attemptMs: number): Promise<Source> {
  const client = createMongoClient(url, attemptMs);
  const db = client.db(databaseOf(url));
  const reader = createMongoReader(db, attemptMs);
  let total: number;
  try {
    await client.connect();
    await reader.learn();
    total = await db.collection(collectionName).estimatedDocumentCount({ maxTimeMS: attemptMs });
  } catch (error) {
    await client.close();
    throw error;
  }
  let done = 0;

  async function* read() {
    let after: string | undefined;
    for (;;) {
      const page = await reader.list({ after, limit: pageSize });
      after = page.at(-1)?.id;
      if (after === undefined) break;
      done += page.length;
      yield page;
    }
    // What no one has written to is not there.
    if (done === 0) throw new Error("it holds no records");
  }

  return {
    batches: read(),
    progress: () => Math.min(1, done / Math.max(1, total)),
    close: () => client.close(),
  };
}

/**
 * Tells databases apart, however their URLs are spelled: by the process that is asked, and the
 * name of the database in it.
 *
 * @throws {Error} if it cannot be reached
 */
export async function identifyMongo(url: string, attemptMs: number): Promise<string> {
  const client = createMongoClient(url, attemptMs);
  try {
    const db: Db = client.db(databaseOf(url));
    await client.connect();
    const hello = await attempt(attemptMs, (signal) => db.command({ hello: 1 }, { signal }));
    return `${hello.topologyVersion?.processId} ${db.databaseName}`;
  } finally {
    await client.close();
  }
}
