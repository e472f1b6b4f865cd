import type { Db, Document } from "mongodb";
import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import { maxUuid, nilUuid } from "../uuid.ts";
import { runCommand } from "./mongodb-command.ts";
import {
  collectionName,
  fromDocument,
  type InvestorDocument,
  projection,
  toKey,
} from "./mongodb-document.ts";
import type { Range } from "./store.ts";

/** See {@link createMongoReader}. */
export type MongoReader = ReturnType<typeof createMongoReader>;

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
 * So the proof has to come after the read, or begin before the read and be waited for with
 * `afterClusterTime`. A proof beside the read proves nothing: the read may be served by a
 * deposed primary that knows nothing of it, or before the new one has committed. MongoDB names
 * single documents because a longer result may come in several batches, of which each would be
 * proved for itself, and because a scan is not one point in time. Neither matters here: every
 * result is one batch (`singleBatch`), and a record that was there when the scan began stays
 * where it is in the index on `_id`. Each read carries its own proof, none is shared, and one
 * that fails proves nothing: its result is dropped and its error reported, never a missing record.
 * On a sharded cluster each shard proves its own part.
 *
 * Each read is a single attempt of at most `attemptMs`, if no other time is given, and throws
 * whatever the driver throws.
 */
export function createMongoReader(db: Db, attemptMs: number) {
  let settled: string | undefined;

  /** Looks at who may become primary, see {@link settledElection}. */
  async function learn(caller?: AbortSignal, limitMs = attemptMs): Promise<string | undefined> {
    settled = settledElection(await runCommand(db, { hello: 1 }, limitMs, caller));
    return settled;
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
      // What other programs have added to a document would take the room of records.
      projection,
      // One more than can come ends the cursor with the first reply. That holds 16 MiB, and a
      // thousand of the largest records weigh 11.
      batchSize: query.limit + 1,
      singleBatch: true,
      readConcern: { level },
    };
    const { cursor } = await runCommand(db, command, limitMs, caller);
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

  return {
    learn,

    /**
     * The records with these ids that the primary knows to be committed. One that is missing
     * may have been acknowledged all the same.
     */
    async findCommitted(ids: string[]): Promise<Map<string, Investor>> {
      return byId(await read(queryOf(ids), "majority", attemptMs));
    },

    /** The records with these ids; each that was acknowledged before is among them. */
    async find(ids: string[], limitMs = attemptMs): Promise<Map<string, Investor>> {
      return byId(await readAll(queryOf(ids), limitMs));
    },

    /** A page; each record in its range that was acknowledged before is in it. */
    async list({ after, limit }: Range, caller?: AbortSignal): Promise<Investor[]> {
      const begin = after === undefined ? { $gte: firstKey } : { $gt: toKey(after) };
      const filter = { _id: { ...begin, $lte: lastKey } };
      return readAll({ filter, sort: { _id: 1 }, limit }, attemptMs, caller);
    },
  };
}

/** The range of the keys of records. What other programs keep under keys of another type is none. */
const firstKey = toKey(nilUuid);
const lastKey = toKey(maxUuid);

/** What is looked for, in the terms of MongoDB's command `find`. */
interface Query {
  filter: Document;
  sort?: Document;
  limit: number;
}

function queryOf(ids: string[]): Query {
  const keys = Array.from(new Set(ids), toKey);
  // For a single key the server has a shorter way than for a set of one.
  return { filter: { _id: keys.length === 1 ? keys[0] : { $in: keys } }, limit: keys.length };
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
 * itself can let others be elected, by a new configuration, and it would name them. This also
 * holds for members that `hello` does not name: hidden ones, and those of priority 0, cannot be
 * elected. But they can vote, and have what a restarted primary has not yet committed again,
 * hence the second condition. Nothing is remembered that could be out of date: where several
 * can be elected, every read proves itself, and a set that has shrunk to one is noticed later.
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
