import { BSON, type Document, MongoServerSelectionError } from "mongodb";
import type { Investor } from "../../../gen/investor/v1/investor_pb.js";
import type { Range } from "../../investor/paging.ts";
import { createTurns } from "../../turns.ts";
import { unlessAborted } from "../abort.ts";
import { Batcher } from "../batcher.ts";
import {
  expectOrder,
  OutcomeUnknownError,
  type Store,
  StoreClosedError,
  type StoreOptions,
  StoreUnavailableError,
} from "../store.ts";
import { createMongoClient } from "./client.ts";
import {
  collectionName,
  firstKey,
  fromDocument,
  type InvestorDocument,
  lastKey,
  projection,
  type Query,
  queryOf,
  toDocument,
  toKey,
} from "./documents.ts";
import { explain, isSurelyNotWritten, toInsertError, unavailable } from "./errors.ts";

/** How many documents are decoded in a turn of the event loop. */
const decodedAtOnce = 128;

/**
 * Keeps records in a MongoDB collection: of a standalone server, a replica set or, sharded
 * on `_id`, a cluster. It connects on first use, whenever the database can be reached. Finding a
 * server, waiting for a connection, making one, and each command get a quarter of the timeout.
 *
 * @param url a connection string; the database is the one that it names, or `investors`
 * @throws {DatabaseUrlError} the URL cannot be used; the message has no values of it
 */
export function createMongoStore(
  url: string,
  { requestTimeoutMs, observe }: Pick<StoreOptions, "requestTimeoutMs" | "observe">,
): Store {
  const attemptMs = Math.ceil(requestTimeoutMs / 4);
  let current = createMongoClient(url, attemptMs);
  const clients = new Set([current.client]);
  let connecting: Promise<unknown> | undefined;
  let closing: Promise<unknown> | undefined;
  const takeTurn = createTurns();
  /** See {@link settledElection}. */
  let settled: string | undefined;

  /** Connects, once: the driver reconnects by itself, but not if its first attempt fails. */
  async function connect(): Promise<void> {
    connecting ??= current
      .connect()
      .then(() => retryOnce(learnElection))
      .catch((error) => {
        connecting = undefined;
        throw error;
      });
    await connecting;
  }

  /**
   * The server gives up after the time of an attempt, and has a little longer to say so. The next
   * batch waits for this one.
   */
  function run(
    command: Document,
    { timeoutMs = attemptMs * 1.25, raw = false }: { timeoutMs?: number; raw?: boolean } = {},
  ): Promise<Document> {
    return current.run({ ...command, maxTimeMS: attemptMs }, { timeoutMs, raw });
  }

  /** @throws {StoreUnavailableError} the user may read, and not insert */
  async function checkRights(): Promise<void> {
    const { authInfo } = await run({ connectionStatus: 1, showPrivileges: true });
    const { authenticatedUsers: users, authenticatedUserPrivileges: privileges } = authInfo;
    const mayInsert = ({ resource: { anyResource, db, collection }, actions }: Document) =>
      actions.includes("insert") &&
      (anyResource ||
        (["", current.db.databaseName].includes(db) && ["", collectionName].includes(collection)));
    // Where nothing is authorized there are no users.
    if (users.length === 0 || privileges.some(mayInsert)) return;
    throw new StoreUnavailableError(
      "MongoDB does not authorize inserts: check the user in the URL and its roles",
    );
  }

  async function learnElection(): Promise<string | undefined> {
    settled = settledElection(await run({ hello: 1 }));
    return settled;
  }

  async function insertAll(investors: Investor[]): Promise<(Error | undefined)[]> {
    const command = {
      insert: collectionName,
      documents: investors.map(toDocument),
      ordered: false,
      // The journal matters to a standalone server, for which every write is a majority.
      writeConcern: { w: "majority", j: true },
    };
    // Without a majority the driver throws, and nothing of the reply is sure. With one, the
    // duplicates are too: the server has waited for all that stood in its log when it replied.
    // Longer than a read, which is repeated: its outcome would be open.
    const { writeErrors = [] } = await run(command, { timeoutMs: attemptMs * 2 }).catch((error) => {
      throw isSurelyNotWritten(error)
        ? unavailable(error)
        : new OutcomeUnknownError(explain(error));
    });
    const outcomes = new Array<Error | undefined>(investors.length);
    for (const failure of writeErrors) outcomes[failure.index] = toInsertError(failure);
    return outcomes;
  }

  async function find(query: Query, level: "majority" | "linearizable"): Promise<Investor[]> {
    const command = {
      find: collectionName,
      ...query,
      // What other programs have added to a document would take the room of records.
      projection,
      // One more than can come ends the cursor with the first reply. That holds 16 MiB, and a
      // thousand of the largest records weigh 11.
      batchSize: query.limit + 1,
      singleBatch: true,
      readConcern: { level },
    };
    // Otherwise the driver would decode replies as they arrive, many large ones in one turn.
    const { cursor } = await run(command, { raw: true });
    const { firstBatch } = BSON.deserialize(cursor, { fieldsAsRaw: { firstBatch: true } });
    const investors: Investor[] = [];
    for (const [i, document] of (firstBatch as Uint8Array[]).entries()) {
      if (i % decodedAtOnce === 0 && firstBatch.length > 1) await takeTurn();
      investors.push(fromDocument(BSON.deserialize(document) as InvestorDocument));
    }
    return investors;
  }

  /**
   * Reads so that nothing is missing that was acknowledged before.
   *
   * Records are only added, so one that is read with the concern `majority` is right, but one
   * that is missing may be out of date: a new primary does not know what its predecessor
   * acknowledged until it has committed something itself, nor a deposed one what its successor
   * did. A `linearizable` read rules out both: after the read the primary writes a no-op and
   * waits for a majority to take it, which none would that had elected another since. MongoDB
   * promises that for single documents, since a longer result may come in several batches, of
   * which each is proved for itself, and a scan is not one point in time. Here every result is
   * one batch, and a record that was there when the scan began stays where it is in the index.
   */
  async function findAll(query: Query): Promise<Investor[]> {
    const election = settled;
    if (election !== undefined) {
      const found = await find(query, "majority");
      if ((await learnElection()) === election) return found;
    }
    return find(query, "linearizable");
  }

  const inserts = new Batcher<Investor, undefined>({
    ready: connect,
    run: insertAll,
    abandoned: (cause) => new OutcomeUnknownError("the insert was not waited for", { cause }),
    observe: (durationMs, size) => observe("insert", durationMs, size),
  });

  // Apart, so that hits do not wait for what others missed.
  const misses = new Batcher<string, Investor | undefined>({
    async run(ids) {
      const found = byId(await retryOnce(() => findAll(queryOf(ids))));
      return ids.map((id) => found.get(id));
    },
    observe: (durationMs, size) => observe("find", durationMs, size),
  });

  const finds = new Batcher<string, Investor | undefined>({
    ready: connect,
    async run(ids) {
      const found = byId(await retryOnce(() => find(queryOf(ids), "majority")));
      return ids.map((id) => found.get(id) ?? misses.add(id));
    },
    observe: (durationMs, size) => observe("find", durationMs, size),
  });

  async function list({ after, limit }: Range, operation: "list" | "check"): Promise<Investor[]> {
    await connect();
    const start = performance.now();
    try {
      const begin = after === undefined ? { $gte: firstKey } : { $gt: toKey(after) };
      const filter = { _id: { ...begin, $lte: lastKey } };
      const page = await retryOnce(() => findAll({ filter, sort: { _id: 1 }, limit }));
      expectOrder(page, after);
      return page;
    } finally {
      observe(operation, performance.now() - start);
    }
  }

  /** Runs work without aborting it when its caller leaves: it ends by its own timeouts soon. */
  async function call<T>(work: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    signal?.throwIfAborted();
    if (closing !== undefined) throw new StoreClosedError();
    return signal ? unlessAborted(work(), signal) : work();
  }

  async function reload(): Promise<void> {
    const next = createMongoClient(url, attemptMs);
    clients.add(next.client);
    try {
      await next.connect();
    } catch (error) {
      await next.client.close();
      clients.delete(next.client);
      const { message } = error as Error;
      throw new Error(`the files that --database-url names cannot be used: ${message}`);
    }
    const { client } = current;
    current = next;
    // Its commands have ended by then, each of which takes less than a call may.
    const close = () => client.close().then(() => clients.delete(client));
    setTimeout(close, requestTimeoutMs).unref();
  }

  return {
    insert: (investor, signal) => inserts.add(investor, signal),
    find: (id, call) => finds.add(id, call?.signal),
    list: (range, signal) => call(() => list(range, "list"), signal),

    async ping(signal) {
      await call(async () => {
        await list({ limit: 1 }, "check");
        await retryOnce(learnElection);
        await retryOnce(checkRights);
      }, signal);
    },

    files: current.files,
    ...(current.files.length > 0 && { reload }),

    async close() {
      closing ??= Promise.all([inserts, finds, misses].map((each) => each.close())).then(() =>
        Promise.all(Array.from(clients, (client) => client.close())),
      );
      await closing;
    },
  };
}

function byId(investors: Investor[]): Map<string, Investor> {
  return new Map(investors.map((investor) => [investor.id, investor]));
}

/**
 * The election after which a `majority` read misses nothing, if a reply to `hello` shows one:
 * that of a standalone server, which knows no others, or of a primary that is the only member
 * that can be elected and has committed in its own term. A set of one would take 100 ms for a
 * linearizable read, and a standalone server refuses it.
 *
 * A read may rely on an election that was settled before it, if the server's `hello` after it
 * still names the same. Then no other member was elected before the read: only the primary
 * itself can let others be elected, by a new configuration, and it would name them. Members that
 * `hello` does not name cannot be elected either (hidden, or of priority 0). But they vote, and
 * have what a restarted primary has not yet committed again, hence the second condition.
 */
function settledElection(hello: Document): string | undefined {
  const { msg, setName, hosts, isWritablePrimary, electionId, lastWrite } = hello;
  // That of a router of a sharded cluster.
  if (msg === "isdbgrid") return undefined;
  if (setName === undefined) return "standalone";
  const isSettled =
    isWritablePrimary &&
    hosts?.length === 1 &&
    lastWrite !== undefined &&
    String(lastWrite.opTime.t) === String(lastWrite.majorityOpTime.t);
  return isSettled ? String(electionId) : undefined;
}

/**
 * Retries a read once: an election ends it, and the driver finds the new primary for the next.
 * Where it found none there is nothing to retry.
 *
 * @throws {StoreUnavailableError} it failed again
 */
async function retryOnce<T>(read: () => Promise<T>): Promise<T> {
  try {
    return await read().catch((error) => {
      if (error instanceof MongoServerSelectionError) throw error;
      return read();
    });
  } catch (error) {
    throw unavailable(error as Error);
  }
}
