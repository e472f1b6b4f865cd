import { BSON, type Document, MongoServerError, MongoServerSelectionError } from "mongodb";
import type { Investor } from "../../../gen/investor/v1/investor_pb.js";
import { createTurns } from "../../event-loop.ts";
import { StoreUnavailableError } from "../store.ts";
import type { Run } from "./client.ts";
import { collectionName, fromDocument, projection, type Query } from "./documents.ts";
import { code, unavailable } from "./errors.ts";

/** How many documents are decoded in a turn of the event loop. */
const decodedAtOnce = 128;

/** A reply of MongoDB, of 16 MiB at most, lacks records. */
class CutReplyError extends Error {
  constructor() {
    super(
      "MongoDB's reply has no room for records that another program has made larger than valid",
    );
  }
}

/** Creates the reads of one store. */
export function createReads(run: Run) {
  const takeTurn = createTurns();
  /** See {@link settledElection}. */
  let settled: string | undefined;

  async function learnElection(): Promise<string | undefined> {
    settled = settledElection(await run({ hello: 1 }));
    return settled;
  }

  /** @throws {MongoServerError} the server is a secondary, on which pages and misses fail */
  async function expectPrimary(): Promise<void> {
    const hello = await run({ hello: 1 });
    settled = settledElection(hello);
    if (hello.setName !== undefined && !hello.isWritablePrimary) {
      throw new MongoServerError({ message: "not primary", code: code.notWritablePrimary });
    }
  }

  /** Reads what a majority has; a new primary may not know the latest of it. */
  async function find(query: Query, level: "majority" | "linearizable"): Promise<Investor[]> {
    const command = {
      find: collectionName,
      ...query,
      // What other programs have added to a document would take the room of records.
      projection,
      // One more than can come, so that a cursor which is left shows that the reply had no room.
      batchSize: query.limit + 1,
      readConcern: { level },
    };
    // Otherwise the driver would decode replies as they arrive, many large ones in one turn.
    const { cursor } = await run(command, { raw: true });
    const { id, firstBatch } = BSON.deserialize(cursor, { fieldsAsRaw: { firstBatch: true } });
    if (Number(id) !== 0) throw new CutReplyError();
    const investors: Investor[] = [];
    for (const [i, document] of (firstBatch as Uint8Array[]).entries()) {
      if (i % decodedAtOnce === 0 && firstBatch.length > 1) await takeTurn();
      investors.push(fromDocument(BSON.deserialize(document)));
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

  return {
    learnElection,
    expectPrimary,
    /** Whether the server is in no set and no cluster. */
    get isStandalone(): boolean {
      return settled === standalone;
    },
    find: (query: Query) => find(query, "majority"),
    findAll,
  };
}

/** The election of a server that is in no set. */
const standalone = "standalone";

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
  if (setName === undefined) return standalone;
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
