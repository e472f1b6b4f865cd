import {
  type Collection,
  type Db,
  MongoClient,
  MongoServerError,
  MongoServerSelectionError,
} from "mongodb";
import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import { serialisedSize } from "../investor.ts";
import { Batcher } from "./batcher.ts";
import { fromDocument, type InvestorDocument, toDocument, toKey } from "./mongodb-document.ts";
import { insertAndReplay, type WriteFailure } from "./mongodb-insert.ts";
import {
  OutcomeUnknownError,
  type Range,
  type Store,
  type StoreObserver,
  StoreUnavailableError,
} from "./store.ts";

/** What a {@link createMongoStore MongoDB store} needs. */
export interface MongoStoreOptions {
  /** A connection string; the database that it names, or `investors`. */
  url: string;
  /** For how long a call may take, in milliseconds. */
  requestTimeoutMs: number;
  observe: StoreObserver;
}

const collectionName = "investors";
const batchLimits = { maxItems: 512, maxBytes: 4 * 1024 * 1024, maxQueued: 8_192 };

/** How long the driver may look for a server or a connection, in milliseconds. */
const selectionTimeoutMs = 2_000;

/**
 * Keeps records in a MongoDB collection: of a standalone server, a replica set or, sharded
 * on `_id`, a cluster. It connects by itself, whenever the database is there.
 *
 * @throws {Error} if the URL is malformed; the message does not repeat it
 */
export function createMongoStore({ url, requestTimeoutMs, observe }: MongoStoreOptions): Store {
  const client = createClient(url);
  const db = client.db(databaseOf(url));
  const collection: Collection<InvestorDocument> = db.collection(collectionName);
  // What a batch could not settle in time is told to its callers before they give up.
  const timeLimitMs = Math.ceil(requestTimeoutMs * 0.9);
  let connecting: Promise<unknown> | undefined;
  let closing: Promise<void> | undefined;

  /** Connects, once: the driver finds its way back later, but gives up if the first try fails. */
  async function connect(): Promise<void> {
    connecting ??= client.connect().catch((error) => {
      connecting = undefined;
      unavailable(error);
    });
    await connecting;
  }

  const inserts = new Batcher<Investor, undefined>({
    ...batchLimits,
    async run(investors) {
      await connect();
      return insertAndReplay(investors, {
        insert: (batch, limitMs) => insert(db, batch, limitMs),
        findAll: (ids, limitMs) => findAll(collection, ids, limitMs),
        timeLimitMs,
      });
    },
    observe: (seconds, size) => observe("insert", seconds, size),
    abandoned: (cause) => new OutcomeUnknownError("the insert was not waited for", { cause }),
    sizeOf: serialisedSize,
    maxWaitMs: requestTimeoutMs / 2,
    timeLimitMs,
  });

  const finds = new Batcher<string, Investor | undefined>({
    ...batchLimits,
    async run(ids) {
      await connect();
      const found = await findAll(collection, ids, timeLimitMs).catch(unavailable);
      return ids.map((id) => found.get(id));
    },
    observe: (seconds, size) => observe("find", seconds, size),
    abandoned: (cause) => cause,
    sizeOf: (id) => id.length,
    maxWaitMs: requestTimeoutMs / 2,
    timeLimitMs,
  });

  function refuseIfClosed(): void {
    if (closing !== undefined) throw new StoreUnavailableError("the store is closed");
  }

  return {
    insert: (investor, signal) => inserts.add(investor, signal),

    find: (id, signal) => finds.add(id, signal),

    async list({ after, limit }: Range, signal) {
      refuseIfClosed();
      await connect();
      const filter = after === undefined ? {} : { _id: { $gt: toKey(after) } };
      const query = (limitSignal: AbortSignal) =>
        collection
          .find(filter, { ...readOptions(limit, timeLimitMs), signal: limitSignal })
          .sort({ _id: 1 })
          .limit(limit)
          .toArray();
      const start = performance.now();
      const documents = await within(timeLimitMs, query, signal).catch((error) => {
        if (signal?.aborted) throw error;
        return unavailable(error);
      });
      observe("list", (performance.now() - start) / 1_000);
      return documents.map(fromDocument);
    },

    async ping(signal) {
      refuseIfClosed();
      await connect();
      const ping = (limitSignal: AbortSignal) =>
        db.command({ ping: 1 }, { readPreference: "primary", signal: limitSignal });
      await within(timeLimitMs, ping, signal).catch(unavailable);
    },

    close() {
      closing ??= Promise.all([inserts.close(), finds.close()]).then(() => client.close());
      return closing;
    },
  };
}

function createClient(url: string): MongoClient {
  try {
    return new MongoClient(url, {
      appName: "investor-records",
      readPreference: "primary",
      // A hidden retry would blur what surely was not written.
      retryWrites: false,
      serverSelectionTimeoutMS: selectionTimeoutMs,
      waitQueueTimeoutMS: selectionTimeoutMs,
      connectTimeoutMS: selectionTimeoutMs,
      heartbeatFrequencyMS: selectionTimeoutMs,
    });
  } catch (error) {
    // The message may hold the URL, and the URL a password.
    throw new Error(`the database URL is not a MongoDB connection string (${nameOf(error)})`);
  }
}

/** The database that a connection string names, or `investors`. */
function databaseOf(url: string): string {
  const [, name = ""] = /^mongodb(?:\+srv)?:\/\/[^/]*\/([^?]*)/.exec(url) ?? [];
  return decodeURIComponent(name) || "investors";
}

/** Sends one insert, as InsertSteps describes it. */
async function insert(
  db: Db,
  investors: Investor[],
  limitMs: number,
): Promise<Map<number, WriteFailure>> {
  const command = {
    insert: collectionName,
    documents: investors.map(toDocument),
    ordered: false,
    // The journal matters to a standalone server, for which every write is a majority.
    writeConcern: { w: "majority", j: true },
    maxTimeMS: limitMs,
  };
  const answer = await within(limitMs, (signal) => db.command(command, { signal })).catch(
    (error) => {
      if (isSurelyNotWritten(error))
        throw new StoreUnavailableError(error.message, { cause: error });
      throw error;
    },
  );
  // A record that was reported so has been seen to be rolled back by the next election.
  if (answer.writeConcernError) throw new Error(answer.writeConcernError.errmsg);
  const failures = (answer.writeErrors ?? []) as (WriteFailure & { index: number })[];
  return new Map(failures.map((failure) => [failure.index, failure]));
}

function isSurelyNotWritten(error: unknown): error is Error {
  const notWritablePrimary = 10_107;
  return (
    error instanceof MongoServerSelectionError ||
    (error instanceof Error && error.name === "MongoWaitQueueTimeoutError") ||
    (error instanceof MongoServerError && error.code === notWritablePrimary)
  );
}

/** The records with these ids, as a majority has them, in one round trip. */
async function findAll(collection: Collection<InvestorDocument>, ids: string[], limitMs: number) {
  const keys = Array.from(new Set(ids), toKey);
  const [only] = keys;
  // For a single key the server has a shorter way than for a set of one.
  const filter = { _id: only !== undefined && keys.length === 1 ? only : { $in: keys } };
  const documents = await within(limitMs, (signal) =>
    collection.find(filter, { ...readOptions(ids.length, limitMs), signal }).toArray(),
  );
  return new Map(documents.map(fromDocument).map((investor) => [investor.id, investor]));
}

function readOptions(count: number, limitMs: number) {
  // One more than can come ends the cursor with the first answer.
  const batch = { batchSize: count + 1, singleBatch: true };
  return { ...batch, readConcern: { level: "majority" as const }, maxTimeMS: limitMs };
}

/**
 * Gives a call a signal that aborts after a time, or with the caller's. It always aborts with
 * an Error: of anything else the driver makes a TypeError, after the request went out.
 */
async function within<T>(
  ms: number,
  run: (signal: AbortSignal) => Promise<T>,
  caller?: AbortSignal,
): Promise<T> {
  const controller = new AbortController();
  const leave = () => controller.abort(new Error("the caller left"));
  const timer = setTimeout(() => controller.abort(new Error(`no answer within ${ms} ms`)), ms);
  caller?.addEventListener("abort", leave);
  try {
    caller?.throwIfAborted();
    return await run(controller.signal);
  } catch (error) {
    caller?.throwIfAborted();
    throw error;
  } finally {
    clearTimeout(timer);
    caller?.removeEventListener("abort", leave);
  }
}

function unavailable(error: unknown): never {
  throw new StoreUnavailableError(error instanceof Error ? error.message : String(error), {
    cause: error,
  });
}

function nameOf(error: unknown): string {
  return error instanceof Error ? error.name : "error";
}
