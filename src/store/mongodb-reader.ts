import { type Db, type Document, MongoServerSelectionError } from "mongodb";
import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import { attempt } from "./mongodb-attempt.ts";
import { collectionName, fromDocument, type InvestorDocument, toKey } from "./mongodb-document.ts";
import { type Range, StoreUnavailableError } from "./store.ts";

/**
 * Reads records so that no election hides one that was acknowledged.
 *
 * Records are only added, so a record that is read is right, and only one that is missing can
 * be out of date: with the read concern `majority` a primary shows what it knows to be
 * committed. A new primary does not know what its predecessor acknowledged until it has
 * committed something in its own term, and a deposed one does not know what its successor
 * acknowledged until it learns that it was deposed.
 *
 * A `linearizable` read rules out both. The primary reads all that it has, then writes a no-op
 * and waits until a majority has it:
 * - What was acknowledged before the read, in this term or an earlier one, the primary has:
 *   it would not have been elected otherwise.
 * - Nothing was acknowledged before the read in a later term: a majority had to elect that
 *   term's primary, and would not have taken the no-op of this one afterwards.
 * - What it read will not be rolled back: it stands before the no-op, which a majority has.
 *
 * So the proof has to come behind the read, or begin before the read and be waited for with
 * `afterClusterTime`. A proof beside the read proves nothing: the read may be served by a
 * deposed primary that knows nothing of it, or before the new one has committed. MongoDB names
 * single documents because a longer result may come in several batches, of which each would be
 * proved for itself, and because a scan is not one point in time. Neither matters here: every
 * result is one batch (`singleBatch`), and a record that was there when the scan began stays
 * where it is in the index on `_id`. Each read carries its own proof, none is shared, and one
 * that fails tells nothing: the result is dropped and the error told, never a record missing.
 * On a sharded cluster each shard proves its own part.
 */
export interface MongoReader {
  /**
   * Looks at who may become primary, see {@link settledElection}.
   *
   * @throws {unknown} whatever the driver throws
   */
  learn(signal?: AbortSignal): Promise<void>;
  /**
   * The records with these ids that the primary knows to be committed. One that is missing may
   * have been acknowledged all the same.
   *
   * @throws {StoreUnavailableError} they could not be read
   */
  findCommitted(ids: string[]): Promise<Map<string, Investor>>;
  /**
   * The records with these ids; each that was acknowledged before is among them.
   *
   * @throws {StoreUnavailableError} they could not be read
   */
  find(ids: string[]): Promise<Map<string, Investor>>;
  /**
   * Does what {@link MongoReader.find} does, in a single attempt.
   *
   * @throws {unknown} whatever the driver throws
   */
  findOnce(ids: string[], limitMs: number): Promise<Map<string, Investor>>;
  /**
   * A page; each record in its range that was acknowledged before is in it.
   *
   * @throws {StoreUnavailableError} it could not be read
   */
  list(range: Range, signal?: AbortSignal): Promise<Investor[]>;
}

/** Reads from a database; each attempt takes at most `attemptMs`, and there is a second one. */
export function createMongoReader(db: Db, attemptMs: number): MongoReader {
  let settled: string | undefined;

  async function learn(signal?: AbortSignal, limitMs = attemptMs): Promise<string | undefined> {
    settled = settledElection(await attempt(limitMs, hello, signal));
    return settled;
  }

  function hello(signal: AbortSignal): Promise<Document> {
    return db.command({ hello: 1 }, { signal });
  }

  async function read(
    query: Query,
    level: "majority" | "linearizable",
    limitMs: number,
    caller?: AbortSignal,
  ): Promise<Investor[]> {
    const command = {
      find: collectionName,
      ...query,
      // One more than can come ends the cursor with the first reply. That holds 16 MiB, and a
      // thousand of the largest records weigh 11.
      batchSize: query.limit + 1,
      singleBatch: true,
      readConcern: { level },
      maxTimeMS: Math.ceil(limitMs),
    };
    const run = (signal: AbortSignal) => db.command(command, { signal });
    const { cursor } = await attempt(limitMs, run, caller);
    return (cursor.firstBatch as InvestorDocument[]).map(fromDocument);
  }

  /** Reads so that nothing that was acknowledged before is missing. */
  async function readAll(query: Query, limitMs: number, caller?: AbortSignal) {
    const election = settled;
    if (election !== undefined) {
      const found = await read(query, "majority", limitMs, caller);
      if ((await learn(caller, limitMs)) === election) return found;
    }
    return read(query, "linearizable", limitMs, caller);
  }

  const findOnce = async (ids: string[], limitMs: number) =>
    byId(await readAll(queryOf(ids), limitMs));

  return {
    async learn(signal) {
      await learn(signal);
    },
    findOnce,
    find: (ids) => twice(() => findOnce(ids, attemptMs)),
    findCommitted: (ids) =>
      twice(async () => byId(await read(queryOf(ids), "majority", attemptMs))),
    list({ after, limit }, signal) {
      const filter = after === undefined ? {} : { _id: { $gt: toKey(after) } };
      return twice(() => readAll({ filter, sort: { _id: 1 }, limit }, attemptMs, signal), signal);
    },
  };
}

/** What is looked for, in the terms of MongoDB's command `find`. */
interface Query {
  filter: Document;
  sort?: Document;
  limit: number;
}

function queryOf(ids: string[]): Query {
  const keys = Array.from(new Set(ids), toKey);
  const [only] = keys;
  // For a single key the server has a shorter way than for a set of one.
  const filter = { _id: only !== undefined && keys.length === 1 ? only : { $in: keys } };
  return { filter, limit: keys.length };
}

function byId(investors: Investor[]): Map<string, Investor> {
  return new Map(investors.map((investor) => [investor.id, investor]));
}

/**
 * The election behind which a `majority` read misses nothing, if a reply to `hello` shows one:
 * that of a standalone server, which knows no others, or of a primary that is the only member
 * that can be elected and has committed in its own term. A set of one would take 100 ms for a
 * linearizable read, and a standalone server refuses it.
 *
 * A read may rely on an election that was settled before it, if the server's `hello` behind it
 * still names the same. Then no other member was elected before the read: only the primary
 * itself can let others be elected, by a new configuration, and it would name them. This also
 * holds for members that `hello` does not name: hidden ones, and those of priority 0, cannot be
 * elected. But they can vote, and have what a restarted primary has not yet committed again,
 * hence the second condition. Nothing is remembered that could be out of date: where several
 * can be elected, every read proves itself, and a set that has shrunk to one is noticed later.
 */
function settledElection(hello: Document): string | undefined {
  const { msg, setName, hosts, isWritablePrimary, electionId, lastWrite } = hello;
  const isRouter = msg === "isdbgrid";
  if (isRouter) return undefined;
  if (setName === undefined) return "standalone";
  const isSettled =
    isWritablePrimary &&
    hosts?.length === 1 &&
    lastWrite !== undefined &&
    String(lastWrite.opTime.t) === String(lastWrite.majorityOpTime.t);
  return isSettled ? String(electionId) : undefined;
}

/**
 * Tries again what failed: an election ends a read, and the driver finds the new primary at
 * the next. Where it found none there is nothing to try.
 */
async function twice<T>(run: () => Promise<T>, caller?: AbortSignal): Promise<T> {
  try {
    return await run().catch((error) => {
      if (caller?.aborted || error instanceof MongoServerSelectionError) throw error;
      return run();
    });
  } catch (error) {
    caller?.throwIfAborted();
    throw unavailable(error);
  }
}

/** The error of a store that did nothing. */
export function unavailable(cause: unknown): StoreUnavailableError {
  return new StoreUnavailableError(cause instanceof Error ? cause.message : String(cause), {
    cause,
  });
}
