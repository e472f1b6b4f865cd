import { Binary, BSON, type Document, MongoServerError } from "mongodb";
import type { Run } from "./client.ts";
import { collectionName, projection } from "./documents.ts";

/** The code of an option that a server does not take. */
const badValue = 2;

/** How much of a key of another program is shown. */
const maxKeyLength = 80;

/**
 * Says why a collection cannot be used, for operators; undefined if it can. The time that it takes
 * does not depend on how much is in it. It needs no more rights than to find and insert.
 *
 * @param isSource whether records are only read, so that it need not keep more
 * @param isStandalone whether the server is in no set and no cluster
 * @throws {Error} it cannot be looked at now
 */
export async function whyUnusable(run: Run, isSource: boolean, isStandalone: boolean) {
  const filter = { name: collectionName };
  const list = { listCollections: 1, filter, nameOnly: true, authorizedCollections: true };
  const [collection] = (await run(list)).cursor.firstBatch;
  if (collection !== undefined) {
    if (collection.type !== "collection") return `it is a ${collection.type}`;
    // A server makes a cursor that waits for more only on a capped collection.
    const find = { find: collectionName, projection, limit: 1 };
    const wait = { ...find, limit: 0, batchSize: 1, tailable: true };
    if (!isSource && !(await isRefused(run, wait))) return "it is capped, and drops old records";
    // Lists pass over ids that are no UUIDs, which MongoDB orders before or after all others.
    for (const order of [1, -1]) {
      const [document] = (await run({ ...find, sort: { _id: order } })).cursor.firstBatch;
      if (document === undefined || isRecord(document)) continue;
      const key = BSON.EJSON.stringify(document._id).slice(0, maxKeyLength);
      return `it is another program's: what it has under the key ${key} is no record`;
    }
  }
  if (isSource || !isStandalone) return undefined;
  // No server stores a document with an array as its key.
  const insert = { insert: collectionName, documents: [{ _id: [] }] };
  const writeConcern = { w: "majority", j: true };
  const isWithoutJournal = await isRefused(run, { ...insert, writeConcern });
  return isWithoutJournal ? "its server keeps no journal (--nojournal)" : undefined;
}

/** Whether it could be one of this service's documents, even if another program has spoilt it since. */
function isRecord({ _id, ...fields }: Document): boolean {
  const isUuid = _id instanceof Binary && _id.sub_type === Binary.SUBTYPE_UUID;
  return isUuid && Object.keys(fields).length > 0;
}

/** Whether a server does not take an option of a command. */
async function isRefused(run: Run, command: Document): Promise<boolean> {
  return run(command).then(
    () => false,
    (error) => {
      if (error instanceof MongoServerError) return error.code === badValue;
      throw error;
    },
  );
}
