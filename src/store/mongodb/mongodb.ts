import type { Timestamp } from "mongodb";
import type { Investor } from "../../../gen/investor/v1/investor_pb.js";
import type { Range } from "../../investor/paging.ts";
import { createBatcher } from "../batcher.ts";
import {
  expectOrder,
  noteOutcomes,
  OutcomeUnknownError,
  raceWithSignal,
  type Store,
  StoreClosedError,
  type StoreOptions,
  StoreUnavailableError,
} from "../store.ts";
import { whyUnusable } from "./collection.ts";
import { collectionName, type Query, queryOf, queryOfRange, toDocument } from "./documents.ts";
import { isRefusal, toInsertError, toWriteError, unavailable } from "./errors.ts";
import { createReads, retryOnce } from "./reads.ts";
import { createReplaceableClient } from "./replaceable-client.ts";

type Options = Partial<StoreOptions> & Pick<StoreOptions, "requestTimeoutMs" | "observe">;

/**
 * Keeps records in a MongoDB collection: of a standalone server, a replica set, or a cluster sharded on
 * `_id`. Connects on first use, so the database may be down at startup. Finding a server, waiting for a
 * connection, opening one, and each command get a quarter of the timeout each, inserts twice that.
 *
 * @param url a connection string; its database is used, or `investors`
 * @param isSource whether records are only read, so that capped collections and a missing journal are fine
 * @throws {DatabaseUrlError} the URL cannot be used; the message repeats no value of it
 */
export function createMongoStore(url: string, options: Options, isSource = false): Store {
  const { requestTimeoutMs, observe, onWritable, onFatal } = options;
  const attemptMs = Math.ceil(requestTimeoutMs / 4);
  const client = createReplaceableClient(url, attemptMs, options);
  let connecting: Promise<void> | undefined;
  let closing: Promise<unknown> | undefined;
  /** The server's operation time of the last insert. */
  let lastTime: Timestamp | undefined;
  /** Whether a connection has delivered the reply of an earlier command. */
  let isMixedUp = false;
  const { run } = client;
  const reads = createReads(run);

  /** Connects once: the driver reconnects by itself, but not if its first attempt fails. */
  function connect(): Promise<void> {
    connecting ??= begin();
    return connecting;
  }

  async function begin(): Promise<void> {
    let fault: string | undefined;
    try {
      await client.connect();
      await retryOnce(reads.learnElection);
      fault = await retryOnce(() => whyUnusable(run, isSource, reads.isStandalone));
    } catch (error) {
      connecting = undefined;
      throw error;
    }
    // The collection cannot be used until somebody intervenes.
    if (fault !== undefined) {
      const name = `${collectionName} of the database ${client.current.db.databaseName}`;
      const error = new StoreUnavailableError(
        `the collection ${name} cannot be used, since ${fault}: name another one in the URL`,
      );
      onFatal?.(error);
      throw error;
    }
  }

  async function insertAll(investors: Investor[]): Promise<(Error | undefined)[]> {
    const command = {
      insert: collectionName,
      documents: investors.map(toDocument),
      ordered: false,
      // `j` is for a standalone server, where every write counts as a majority.
      writeConcern: { w: "majority", j: true },
    };
    // Without a majority the driver throws, and no outcome is certain. With one, duplicates are
    // certain too: before replying, the server waited for everything in its oplog. A longer timeout
    // than for reads: a read can be retried, an insert's outcome would be unknown.
    const reply = await run(command, { timeoutMs: attemptMs * 2 }).catch((error) => {
      const failure = toWriteError(error);
      if (isRefusal(error)) onWritable?.(failure);
      throw failure;
    });
    const { n, opTime, writeErrors = [] } = reply;
    // If a proxy delivers a reply twice, the next command gets the copy: the driver does not compare ids.
    const isOld = n > 0 && lastTime && !opTime?.ts?.greaterThan(lastTime);
    isMixedUp = isOld || n !== investors.length - writeErrors.length;
    if (isMixedUp) throw new OutcomeUnknownError("MongoDB's reply does not belong to this insert");
    lastTime = opTime?.ts;
    const outcomes = new Array<Error | undefined>(investors.length).fill(undefined);
    for (const failure of writeErrors) outcomes[failure.index] = toInsertError(failure);
    noteOutcomes(outcomes, onWritable);
    return outcomes;
  }

  async function connectAnew(): Promise<void> {
    await connect();
    if (!isMixedUp) return;
    await client.replace().catch((error) => {
      throw unavailable(error);
    });
    lastTime = undefined;
    isMixedUp = false;
  }

  const inserts = createBatcher("insert", observe, insertAll, connectAnew);
  const finds = createBatcher("find", observe, findBy(reads.find), connect);
  // Separate from `finds`, so that hits do not wait for the second read that each miss needs.
  const misses = createBatcher("find", observe, findBy(reads.findAll));

  async function list(range: Range, operation: "list" | "check", read = reads.findAll) {
    await connect();
    const start = performance.now();
    try {
      const page = await retryOnce(() => read(queryOfRange(range)));
      expectOrder(page, range.after);
      return page;
    } finally {
      observe(operation, performance.now() - start);
    }
  }

  /** Runs work that goes on when the caller leaves: its own timeouts end it soon. */
  async function call<T>(work: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    signal?.throwIfAborted();
    if (closing !== undefined) throw new StoreClosedError();
    return signal ? raceWithSignal(work(), signal) : work();
  }

  return {
    insert: (investor, signal) => inserts.add(investor, signal),
    find: async (id, call) => (await finds.add(id, call?.signal)) ?? misses.add(id, call?.signal),
    list: (range, signal) => call(() => list(range, "list"), signal),

    ping: (signal) =>
      call(async () => {
        // Each linearizable read would write to the oplog.
        await list({ limit: 1 }, "check", reads.find);
        await retryOnce(reads.expectPrimary);
      }, signal),

    get files() {
      return client.current.files;
    },
    reload: client.replace,

    async close() {
      const batchers = [inserts, finds, misses];
      closing ??= Promise.all(batchers.map((each) => each.close())).then(client.close);
      await closing;
    },
  };
}

/** Creates a batch lookup by id; its results are undefined where there is no record. */
function findBy(read: (query: Query) => Promise<Investor[]>) {
  return async (ids: string[]) => {
    const found = await retryOnce(() => read(queryOf(ids)));
    const byId = new Map(found.map((investor) => [investor.id, investor]));
    return ids.map((id) => byId.get(id));
  };
}
