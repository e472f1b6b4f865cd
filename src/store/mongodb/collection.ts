import { Binary, BSON, type Document, MongoServerError } from "mongodb";
import type { Run } from "./client.ts";
import { collectionName, projection } from "./documents.ts";

/** MongoDB's error code for an option that the server does not accept. */
const badValue = 2;

/** How much of a foreign key the message shows. */
const maxKeyLength = 80;

/**
 * Says, for operators, why the collection cannot be used; undefined if it can. Takes the same time however
 * large the collection is, and needs only the rights to find and insert.
 *
 * @param isSource whether records are only read, so that capped collections and a missing journal are fine
 * @param isStandalone whether the server is in neither a replica set nor a cluster
 * @throws {Error} the collection cannot be checked now
 */
export async function whyUnusable(run: Run, isSource: boolean, isStandalone: boolean) {
  const filter = { name: collectionName };
  const list = { listCollections: 1, filter, nameOnly: true, authorizedCollections: true };
  const [collection] = (await run(list)).cursor.firstBatch;
  if (collection !== undefined) {
    if (collection.type !== "collection") return `it is a ${collection.type}`;
    // Only on a capped collection does a server open a tailable cursor.
    const find = { find: collectionName, projection, limit: 1 };
    const wait = { ...find, limit: 0, batchSize: 1, tailable: true };
    if (!isSource && !(await isRefused(run, wait))) return "it is capped, and drops old records";
    // MongoDB sorts ids of other types, which lists skip, before or after all UUIDs.
    for (const order of [1, -1]) {
      const [document] = (await run({ ...find, sort: { _id: order } })).cursor.firstBatch;
      if (document === undefined || isRecord(document)) continue;
      const key = BSON.EJSON.stringify(document._id).slice(0, maxKeyLength);
      return `it is another program's: its document with the key ${key} is not a record`;
    }
  }
  if (isSource || !isStandalone) return undefined;
  // No server stores a document with an array as its key.
  const insert = { insert: collectionName, documents: [{ _id: [] }] };
  const writeConcern = { w: "majority", j: true };
  const isWithoutJournal = await isRefused(run, { ...insert, writeConcern });
  return isWithoutJournal ? "its server keeps no journal (--nojournal)" : undefined;
}

/** Whether this service could have written the document, even if another program has changed it since. */
function isRecord({ _id, ...fields }: Document): boolean {
  const isUuid = _id instanceof Binary && _id.sub_type === Binary.SUBTYPE_UUID;
  return isUuid && Object.keys(fields).length > 0;
}

/** Whether the server rejects an option of a command. */
async function isRefused(run: Run, command: Document): Promise<boolean> {
  return run(command).then(
    () => false,
    (error) => {
      if (error instanceof MongoServerError) return error.code === badValue;
      throw error;
    },
  );
}
