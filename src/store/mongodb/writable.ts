import type { Db, Document, MongoClient } from "mongodb";
import { StoreUnavailableError } from "../store.ts";
import { type Refusal, sampleInvestor } from "../writable.ts";
import type { Run } from "./client.ts";
import { collectionName, toDocument } from "./documents.ts";
import { isRefusal, toInsertError, unavailable } from "./errors.ts";
import { retryOnce } from "./reads.ts";

/** How long after a rejected create to report creates as failing where no trial is possible, in milliseconds. */
const refusedMs = 4_000;

/**
 * Checks whether a create would succeed: inserts in a transaction and aborts it, which leaves nothing
 * behind, not even in the oplog. A standalone server has no transactions: only the next create tells.
 *
 * @param last the last create that was rejected
 * @throws {StoreUnavailableError} a create would fail
 */
export async function lookWhetherWritable(
  run: Run,
  { client, db }: { client: MongoClient; db: Db },
  isStandalone: boolean,
  last?: Refusal,
): Promise<void> {
  await retryOnce(() => checkRights(run, db.databaseName));
  if (!isStandalone && (await insertAndAbort(run, client))) return;
  if (last && performance.now() - last.at < refusedMs) throw last.error;
}

/** @returns whether the insert succeeded; false (as when a lock is held) says nothing about creates */
async function insertAndAbort(run: Run, client: MongoClient): Promise<boolean> {
  // The end of the session aborts its transaction.
  await using session = client.startSession();
  try {
    session.startTransaction();
    const insert = { insert: collectionName, documents: [toDocument(sampleInvestor())] };
    const { writeErrors = [] } = await run(insert, { session });
    for (const failure of writeErrors) throw toInsertError(failure);
    return true;
  } catch (error) {
    if (error instanceof StoreUnavailableError) throw error;
    if (isRefusal(error)) throw unavailable(error as Error);
    return false;
  }
}

/** @throws {StoreUnavailableError} the user may not insert */
async function checkRights(run: Run, database: string): Promise<void> {
  const { authInfo } = await run({ connectionStatus: 1, showPrivileges: true });
  const { authenticatedUsers: users, authenticatedUserPrivileges: privileges } = authInfo;
  const mayInsert = ({ resource: { anyResource, db, collection }, actions }: Document) =>
    actions.includes("insert") &&
    (anyResource || (["", database].includes(db) && ["", collectionName].includes(collection)));
  // Without access control the server reports no users.
  if (users.length === 0 || privileges.some(mayInsert)) return;
  throw new StoreUnavailableError(
    "MongoDB does not authorize inserts: check the user in the URL and its roles",
  );
}
