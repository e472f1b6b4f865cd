import type { Timestamp } from "mongodb";
import type { Investor } from "../../../gen/investor/v1/investor_pb.js";
import type { Range } from "../../investor/paging.ts";
import { createBatcher } from "../batcher.ts";
import {
  DuplicateIdError,
  noteOutcomes,
  OutcomeUnknownError,
  raceWithSignal,
  type Store,
  StoreClosedError,
  type StoreOptions,
  StoreUnavailableError,
} from "../store.ts";
import { createMongoClient } from "./client.ts";
import { whyUnusable } from "./collection.ts";
import { collectionName, type Query, queryOf, queryOfRange, toDocument } from "./documents.ts";
import { isRefusal, toInsertError, toWriteError, unavailable } from "./mongodb-errors.ts";
import { createReads, retryOnce } from "./reads.ts";

/** How often to check the collection again, in milliseconds. */
const checkIntervalMs = 60_000;

/**
 * Keeps records in a MongoDB collection: of a standalone server, a replica set, or a cluster sharded on
 * `_id`. Connects on first use, so the database may be down at startup. Finding a server, waiting for a
 * connection, opening one, and each command get a quarter of the timeout each, inserts twice that.
 *
 * @param url a connection string; its database is used, or `investors`
 * @param isSource whether records are only read, so that a capped collection is fine
 * @throws {ConfigError} the URL cannot be used; the message repeats no value of it
 */
export function createMongoStore(url: string, options: StoreOptions, isSource = false): Store {
  const { requestTimeoutMs, observe, onWritable, onFatal } = options;
  const attemptMs = Math.ceil(requestTimeoutMs / 4);
  const { client, db, run } = createMongoClient(url, attemptMs);
  let connecting: Promise<void> | undefined;
  /** Why no further call can succeed. */
  let fault: StoreUnavailableError | undefined;
  let closing: Promise<unknown> | undefined;
  /** The server's operation time of the last insert. */
  let lastTime: Timestamp | undefined;
  /** When the collection was last found usable, by performance.now(). */
  let checkedAt = Number.NEGATIVE_INFINITY;
  const reads = createReads(run);

  /** Connects once: the driver reconnects by itself, but not if its first attempt fails. */
  async function connect(): Promise<void> {
    if (fault) throw fault;
    connecting ??= begin();
    return connecting;
  }

  async function begin(): Promise<void> {
    try {
      await client.connect().catch((error) => {
        throw unavailable(error);
      });
      await retryOnce(reads.learnElection);
      await checkCollection();
    } catch (error) {
      connecting = undefined;
      throw error;
    }
  }

  /** Fails all further calls, and ends the process. */
  function die(error: StoreUnavailableError): void {
    if (fault) return;
    fault = error;
    onFatal(error);
  }

  /** Checks that the collection can be used; if not, nothing helps until somebody intervenes. */
  async function checkCollection(): Promise<void> {
    const why = await retryOnce(() => whyUnusable(run, isSource));
    checkedAt = performance.now();
    if (why === undefined) return;
    const name = `${collectionName} of the database ${db.databaseName}`;
    const error = new StoreUnavailableError(
      `the collection ${name} cannot be used, since ${why}: name another one in the URL`,
    );
    die(error);
    throw error;
  }

  /**
   * Ends the store, since a connection has delivered the reply of another command, as one behind a faulty
   * proxy does: all its later replies would be wrong too.
   */
  function failMixedUp(what: string, Failure: new (message: string) => Error = Error): never {
    const error = new StoreClosedError(`MongoDB's replies are mixed up, as by a proxy: ${what}`);
    die(error);
    throw new Failure(error.message);
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
      checkedAt = Number.NEGATIVE_INFINITY;
      const failure = toWriteError(error);
      if (isRefusal(error)) onWritable?.(failure);
      throw failure;
    });
    const { n, opTime, writeErrors = [] } = reply;
    // If a proxy delivers a reply twice, the next command gets the copy: the driver does not compare ids.
    const isOld = n > 0 && lastTime && !opTime?.ts?.greaterThan(lastTime);
    if (isOld || n !== investors.length - writeErrors.length) {
      failMixedUp("one does not belong to its insert", OutcomeUnknownError);
    }
    lastTime = opTime?.ts;
    const outcomes = new Array<Error | undefined>(investors.length).fill(undefined);
    for (const failure of writeErrors) outcomes[failure.index] = toInsertError(failure);
    if (outcomes.some((each) => each && !(each instanceof DuplicateIdError))) {
      checkedAt = Number.NEGATIVE_INFINITY;
    }
    noteOutcomes(outcomes, onWritable);
    return outcomes;
  }

  const inserts = createBatcher("insert", observe, insertAll, connect);
  const finds = createBatcher("find", observe, findBy(reads.find, failMixedUp), connect);
  // Separate from `finds`, so that hits do not wait for the second read that each miss needs.
  const misses = createBatcher("find", observe, findBy(reads.findAll, failMixedUp));

  async function list(range: Range, operation: "list" | "check", read = reads.findAll) {
    await connect();
    const start = performance.now();
    try {
      const readPage = () => retryOnce(() => read(queryOfRange(range)));
      const page = await readPage();
      const misplaced = misplacedIn(page, range);
      if (misplaced === undefined) return page;
      if (misplacedIn(await readPage(), range) !== misplaced) failMixedUp("a page is not in order");
      const remedy = "shard the collection on _id alone, or rebuild its index";
      throw new Error(`MongoDB lists the record ${misplaced} out of order: ${remedy}`);
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
        if (performance.now() - checkedAt > checkIntervalMs) await checkCollection();
      }, signal),

    async close() {
      const batchers = [inserts, finds, misses];
      closing ??= Promise.all(batchers.map((each) => each.close())).then(() => client.close());
      await closing;
    },
  };
}

/** The id of the first record of a page that is not in order. */
function misplacedIn(page: Investor[], { after = "" }: Range): string | undefined {
  return page.find(({ id }, i) => id <= (page[i - 1]?.id ?? after))?.id;
}

/**
 * Creates a batch lookup by id; its results are undefined where there is no record.
 *
 * @param failMixedUp throws the error for a record that was not asked for
 */
function findBy(read: (query: Query) => Promise<Investor[]>, failMixedUp: (what: string) => never) {
  return async (ids: string[]) => {
    const found = await retryOnce(() => read(queryOf(ids)));
    const byId = new Map(found.map((investor) => [investor.id, investor]));
    const wanted = new Set(ids);
    if (found.some(({ id }) => !wanted.has(id))) failMixedUp("a record was not asked for");
    return ids.map((id) => byId.get(id));
  };
}
