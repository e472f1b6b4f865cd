import { aborted } from "node:util";
import {
  type Db,
  MongoClient,
  MongoNetworkError,
  MongoServerError,
  MongoServerSelectionError,
  MongoWriteConcernError,
} from "mongodb";
import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import { Batcher } from "./batcher.ts";
import { attempt } from "./mongodb-attempt.ts";
import { collectionName, toDocument } from "./mongodb-document.ts";
import { insertAndReplay, type WriteFailure } from "./mongodb-insert.ts";
import { createMongoReader, unavailable } from "./mongodb-reader.ts";
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
  /**
   * The time that a call may take, in milliseconds. Of it, finding a server, waiting for a
   * connection, making one, and each attempt get a quarter.
   */
  requestTimeoutMs: number;
  observe: StoreObserver;
}

const unauthorized = 13;

/** The driver asks no sooner than this whether a server is there, in milliseconds. */
const minHeartbeatMs = 500;

/**
 * Keeps records in a MongoDB collection: of a standalone server, a replica set or, sharded
 * on `_id`, a cluster. It connects by itself, whenever the database is there.
 *
 * @throws {Error} if the URL is malformed; the message does not repeat it
 */
export function createMongoStore({ url, requestTimeoutMs, observe }: MongoStoreOptions): Store {
  const attemptMs = Math.ceil(requestTimeoutMs / 4);
  const client = createMongoClient(url, attemptMs);
  const db = client.db(databaseOf(url));
  const reader = createMongoReader(db, attemptMs);
  let connecting: Promise<unknown> | undefined;
  let closing: Promise<void> | undefined;

  /** Connects, once: the driver finds its way back later, but gives up if the first try fails. */
  async function connect(): Promise<void> {
    connecting ??= client
      .connect()
      .then(() => reader.learn())
      .catch((error) => {
        connecting = undefined;
        throw unavailable(error);
      });
    await connecting;
  }

  const inserts = new Batcher<Investor, undefined>({
    async run(investors) {
      await connect();
      return insertAndReplay(investors, {
        insert: (batch, limitMs) => insert(db, batch, limitMs),
        find: reader.findOnce,
        attemptMs,
      });
    },
    observe: (seconds, size) => observe("insert", seconds, size),
    abandoned: (cause) => new OutcomeUnknownError("the insert was not waited for", { cause }),
  });

  const observeFind = (seconds: number, size: number) => observe("find", seconds, size);

  // Apart, so that hits do not wait for what others missed.
  const misses = new Batcher<string, Investor | undefined>({
    async run(ids) {
      const found = await reader.find(ids);
      return ids.map((id) => found.get(id));
    },
    observe: observeFind,
    abandoned: (cause) => cause,
  });

  const finds = new Batcher<string, Investor | undefined>({
    async run(ids) {
      await connect();
      const found = await reader.findCommitted(ids);
      return ids.map((id) => found.get(id) ?? misses.add(id));
    },
    observe: observeFind,
    abandoned: (cause) => cause,
  });

  function refuseIfClosed(): void {
    if (closing !== undefined) throw new StoreUnavailableError("the store is closed");
  }

  return {
    insert: (investor, signal) => inserts.add(investor, signal),

    find: (id, signal) => finds.add(id, signal),

    async list(range: Range, signal) {
      refuseIfClosed();
      signal?.throwIfAborted();
      await connect();
      const start = performance.now();
      const investors = await reader.list(range, signal);
      observe("list", (performance.now() - start) / 1_000);
      return investors;
    },

    async ping(signal) {
      refuseIfClosed();
      signal?.throwIfAborted();
      await connect();
      await reader.learn(signal).catch((error) => {
        signal?.throwIfAborted();
        throw unavailable(error);
      });
      await reader.list({ limit: 1 }, signal);
    },

    close(cut) {
      closing ??= Promise.all([inserts, finds, misses].map((each) => each.close())).then(() =>
        client.close(),
      );
      const cutting = cut && aborted(cut, cut).then(() => client.close());
      return cutting === undefined ? closing : Promise.race([closing, cutting]);
    },
  };
}

/**
 * A client whose attempts take at most `attemptMs`; it is not connected yet.
 *
 * @throws {Error} if the URL is malformed; the message does not repeat it
 */
export function createMongoClient(url: string, attemptMs: number): MongoClient {
  try {
    return new MongoClient(url, {
      appName: "investor-records",
      readPreference: "primary",
      // A hidden retry would blur what surely was not written.
      retryWrites: false,
      serverSelectionTimeoutMS: attemptMs,
      waitQueueTimeoutMS: attemptMs,
      connectTimeoutMS: attemptMs,
      heartbeatFrequencyMS: Math.max(attemptMs, minHeartbeatMs),
    });
  } catch (error) {
    // The message may hold the URL, and the URL a password.
    throw new Error(`the database URL is not a MongoDB connection string (${nameOf(error)})`);
  }
}

/** The database that a connection string names, or `investors`. */
export function databaseOf(url: string): string {
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
    maxTimeMS: Math.ceil(limitMs),
  };
  const run = (signal: AbortSignal) => db.command(command, { signal });
  const reply = await attempt(limitMs, run).catch((error) => {
    // What the server says repeats the command, with the records in it.
    if (error instanceof MongoServerError && error.code === unauthorized) {
      throw new StoreUnavailableError(`not authorized to insert into ${db.databaseName}`);
    }
    throw isSurelyNotWritten(error) ? unavailable(error) : error;
  });
  // Without a majority the driver throws, and nothing of it is sure. With one, the duplicates
  // are too: the server has waited for all that stood in its log when it replied.
  const failures = (reply.writeErrors ?? []) as (WriteFailure & { index: number })[];
  return new Map(failures.map((failure) => [failure.index, failure]));
}

function isSurelyNotWritten(error: unknown): boolean {
  const notWritablePrimary = 10_107;
  // It has the code of what ended the wait for a majority, behind the write.
  if (error instanceof MongoWriteConcernError) return false;
  return (
    // What the driver says of a connection that it could not make.
    (error instanceof MongoNetworkError && error.hasErrorLabel("SystemOverloadedError")) ||
    error instanceof MongoServerSelectionError ||
    (error instanceof Error && error.name === "MongoWaitQueueTimeoutError") ||
    (error instanceof MongoServerError && error.code === notWritablePrimary)
  );
}

function nameOf(error: unknown): string {
  return error instanceof Error ? error.name : "error";
}
