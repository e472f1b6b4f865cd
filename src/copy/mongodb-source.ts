import { Binary, type Db } from "mongodb";
import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import { createMongoClient, createMongoStore } from "../store/mongodb.ts";
import { collectionName } from "../store/mongodb-document.ts";
import type { Range } from "../store/store.ts";
import type { Source } from "./copier.ts";
import { requestTimeoutMs } from "./endpoint.ts";
import { createPagedSource } from "./paged-source.ts";

/**
 * Opens a MongoDB database to copy from. It sees every record that was acknowledged before.
 *
 * @throws {Error} if it cannot be reached
 */
export async function openMongoSource(url: string): Promise<Source> {
  const { total, other } = await askServer(url, async (db) => ({
    total: await db.collection(collectionName).estimatedDocumentCount(),
    other: await findOtherKey(db),
  }));
  const store = createMongoStore(url, { requestTimeoutMs, observe() {} });

  async function list(range: Range): Promise<Investor[]> {
    if (other !== undefined) throw new Error(`what it has under the id ${other} is no record`);
    const page = await store.list(range);
    // A database is not there until something is written to it.
    if (page.length === 0 && range.after === undefined) throw new Error("it holds no records");
    return page;
  }

  return createPagedSource(total, list, store.close);
}

/**
 * Tells databases apart, however their URLs are spelled: by the process that is asked, and the
 * name of the database in it.
 *
 * @throws {Error} if it cannot be reached
 */
export function identifyMongo(url: string): Promise<string> {
  return askServer(url, async (db) => {
    const { topologyVersion } = await db.command({ hello: 1 });
    return `${topologyVersion?.processId} ${db.databaseName}`;
  });
}

/**
 * An id that is no UUID, if a document has one: a list passes over it. MongoDB orders ids by their
 * kind, length and subtype first, so that others are the first or the last.
 */
async function findOtherKey(db: Db): Promise<string | undefined> {
  for (const order of [1, -1] as const) {
    const options = { projection: { _id: 1 }, sort: { _id: order } };
    const document = await db.collection(collectionName).findOne({}, options);
    if (document === null) return undefined;
    const key: unknown = document._id;
    if (!(key instanceof Binary)) return String(key);
    const isUuid = key.sub_type === Binary.SUBTYPE_UUID && key.length() === 16;
    if (!isUuid) return key.toString("hex");
  }
  return undefined;
}

async function askServer<T>(url: string, ask: (db: Db) => Promise<T>): Promise<T> {
  const { client, db } = createMongoClient(url, requestTimeoutMs / 4);
  try {
    await client.connect();
    return await ask(db);
  } finally {
    await client.close();
  }
}
