import { BSON, type Document, MongoServerError, MongoServerSelectionError } from "mongodb";
import type { Investor } from "../../../gen/investor/v1/investor_pb.js";
import { createTurns } from "../../turns.ts";
import { StoreUnavailableError } from "../store.ts";
import type { Run } from "./client.ts";
import { collectionName, fromDocument, projection, type Query } from "./documents.ts";
import { code, unavailable } from "./mongodb-errors.ts";

/** How many documents to decode per turn of the event loop. */
const decodedAtOnce = 128;

/** A reply reached MongoDB's limit of 16 MiB, so records are missing from it. */
class CutReplyError extends Error {
  constructor() {
    super("MongoDB's reply is full: records of another program exceed the limit");
  }
}

export function createReads(run: Run) {
  const takeTurn = createTurns();
  /** See {@link settledElection}. */
  let settled: string | undefined;

  async function learnElection(): Promise<string | undefined> {
    settled = settledElection(await run({ hello: 1 }));
    return settled;
  }

  /** @throws {MongoServerError} the server is a secondary, where lists and misses would fail */
  async function expectPrimary(): Promise<void> {
    const hello = await run({ hello: 1 });
    settled = settledElection(hello);
    if (hello.setName !== undefined && !hello.isWritablePrimary) {
      throw new MongoServerError({ message: "not primary", code: code.notWritablePrimary });
    }
  }

  /** Reads with a read concern. With `majority`, a new primary can miss the latest acknowledged records. */
  async function find(query: Query, level: "majority" | "linearizable"): Promise<Investor[]> {
    const command = {
      find: collectionName,
      ...query,
      // Fields that other programs have added could crowd out records.
      projection,
      // One more than the limit, so that a cursor left open means that the reply was full.
      batchSize: query.limit + 1,
      readConcern: { level },
    };
    // Raw documents, since the driver would decode many large ones in one turn. Not a raw reply: the driver
    // takes the state of the topology from errors, which it could not read.
    const { cursor } = await run(command, { fieldsAsRaw: { firstBatch: true } });
    const { id, firstBatch } = cursor;
    if (Number(id) !== 0) throw new CutReplyError();
    const investors: Investor[] = [];
    for (const [i, document] of (firstBatch as Uint8Array[]).entries()) {
      if (i % decodedAtOnce === 0 && firstBatch.length > 1) await takeTurn();
      investors.push(fromDocument(BSON.deserialize(document)));
    }
    return investors;
  }

  /**
   * Reads everything that was acknowledged before the call.
   *
   * Records are only added, so a record that a `majority` read returns is right, but a missing one
   * may just be unknown: a new primary does not know what its predecessor acknowledged until it has
   * committed a write itself, and a deposed one never learns what its successor acknowledged. A
   * `linearizable` read excludes both: after reading, the primary writes a no-op and waits for a
   * majority to replicate it, which fails if another primary was elected. MongoDB guarantees this
   * for single documents only: a longer result can span several batches, each proved by itself, and
   * a scan is not one point in time. Here every result is one batch, and records never move in the
   * index once they are there.
   */
  async function findAll(query: Query): Promise<Investor[]> {
    const election = settled;
    if (election !== undefined) {
      const found = await find(query, "majority");
      if ((await learnElection()) === election) return found;
    }
    return find(query, "linearizable");
  }

  return {
    learnElection,
    expectPrimary,
    find: (query: Query) => find(query, "majority"),
    findAll,
  };
}

/**
 * The election since which a `majority` read misses nothing, if this reply to `hello` shows one:
 * always for a standalone server; for a primary if it is the only electable member and has
 * committed in its own term. Spares a set of one the slow linearizable read, which a standalone
 * server rejects.
 *
 * A read may rely on an election that was settled before it if `hello` after it still names the
 * same one. Then no other member was elected before the read: only the primary itself can make
 * others electable, by a new configuration, and `hello` would list them. Members that `hello` omits
 * (hidden, or of priority 0) cannot be elected. But they vote, and may hold writes that a restarted
 * primary has not committed again, hence the second condition.
 */
function settledElection(hello: Document): string | undefined {
  const { msg, setName, hosts, isWritablePrimary, electionId, lastWrite } = hello;
  // A router of a sharded cluster.
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
 * Retries a read once: an election fails the first, and the driver finds the new primary for the
 * second. No retry where it found none.
 *
 * @throws {StoreUnavailableError} the retry failed too
 */
export async function retryOnce<T>(read: () => Promise<T>): Promise<T> {
  try {
    return await read().catch((error) => {
      if (error instanceof MongoServerSelectionError || error instanceof CutReplyError) throw error;
      return read();
    });
  } catch (error) {
    const isTold = error instanceof StoreUnavailableError || error instanceof CutReplyError;
    throw isTold ? error : unavailable(error as Error);
  }
}
