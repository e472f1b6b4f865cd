import { Binary, BSON, type Document, MongoServerError } from "mongodb";
import type { Run } from "./client.ts";
import { collectionName, projection } from "./documents.ts";
import { code } from "./mongodb-errors.ts";

/** How much of a foreign key the message shows. */
const maxKeyLength = 80;

/**
 * Says, for operators, why the collection cannot be used; undefined if it can. Takes the same time however
 * large the collection is, and needs only the right to find.
 *
 * @param isSource whether records are only read, so that a capped collection is fine
 * @throws {Error} the collection cannot be checked now
 */
export async function whyUnusable(run: Run, isSource: boolean): Promise<string | undefined> {
  const filter = { name: collectionName };
  const list = { listCollections: 1, filter, nameOnly: true, authorizedCollections: true };
  const [collection] = (await run(list)).cursor.firstBatch;
  if (collection === undefined) return undefined;
  if (collection.type !== "collection") return `it is a ${collection.type}`;
  const find = { find: collectionName, projection, limit: 1 };
  if (!isSource && (await isCapped(run))) return "it is capped, and drops old records";
  // MongoDB sorts ids of other types, which lists skip, before or after all UUIDs.
  for (const order of [1, -1]) {
    const [document] = (await run({ ...find, sort: { _id: order } })).cursor.firstBatch;
    if (document === undefined || isRecord(document)) continue;
    const key = BSON.EJSON.stringify(document._id).slice(0, maxKeyLength);
    return `it is another program's: its document with the key ${key} is not a record`;
  }
  return undefined;
}

/** Only on a capped collection does a server open a tailable cursor. */
async function isCapped(run: Run): Promise<boolean> {
  try {
    await run({ find: collectionName, projection, batchSize: 1, tailable: true });
    return true;
  } catch (error) {
    if (error instanceof MongoServerError && error.code === code.badValue) return false;
    throw error;
  }
}

/** Whether this service could have written the document, even if another program has changed it since. */
function isRecord({ _id, ...fields }: Document): boolean {
  const isUuid = _id instanceof Binary && _id.sub_type === Binary.SUBTYPE_UUID;
  return isUuid && Object.keys(fields).length > 0;
}
