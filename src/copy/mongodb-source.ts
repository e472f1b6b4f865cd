import type { Db } from "mongodb";
import { createMongoClient, createMongoStore, databaseOf } from "../store/mongodb.ts";
import { collectionName } from "../store/mongodb-document.ts";
import type { Source } from "./endpoint.ts";

const pageSize = 1_000;

/**
 * Opens a MongoDB database to copy from. It sees every record that was acknowledged before.
 *
 * @throws {Error} if it cannot be reached
 */
export async function openMongoSource(url: string, requestTimeoutMs: number): Promise<Source> {
  const total = await askServer(url, requestTimeoutMs, (db) =>
    db.collection(collectionName).estimatedDocumentCount(),
  );
  const store = createMongoStore(url, { requestTimeoutMs, observe() {} });
  let done = 0;

  async function* read() {
    let after: string | undefined;
    for (;;) {
      const page = await store.list({ after, limit: pageSize });
      after = page.at(-1)?.id;
      if (after === undefined) break;
      done += page.length;
      yield page;
    }
    // A database is not there until something is written to it.
    if (done === 0) throw new Error("it holds no records");
  }

  return {
    batches: read(),
    partRead: () => Math.min(1, done / Math.max(1, total)),
    close: () => store.close(),
  };
}

/**
 * Tells databases apart, however their URLs are spelled: by the process that is asked, and the
 * name of the database in it.
 *
 * @throws {Error} if it cannot be reached
 */
export function identifyMongo(url: string, requestTimeoutMs: number): Promise<string> {
  return askServer(url, requestTimeoutMs, async (db) => {
    const { topologyVersion } = await db.command({ hello: 1 });
    return `${topologyVersion?.processId} ${db.databaseName}`;
  });
}

async function askServer<T>(
  url: string,
  requestTimeoutMs: number,
  ask: (db: Db) => Promise<T>,
): Promise<T> {
  const client = createMongoClient(url, requestTimeoutMs / 4);
  try {
    await client.connect();
    return await ask(client.db(databaseOf(url)));
  } finally {
    await client.close();
  }
}
