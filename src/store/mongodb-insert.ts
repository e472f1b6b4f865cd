import { setTimeout as delay } from "node:timers/promises";
import { equals } from "@bufbuild/protobuf";
import {
  type Db,
  MongoError,
  MongoNetworkError,
  MongoServerError,
  MongoServerSelectionError,
  MongoWriteConcernError,
} from "mongodb";
import { type Investor, InvestorSchema } from "../../gen/investor/v1/investor_pb.js";
import { runCommand, unavailable } from "./mongodb-command.ts";
import { collectionName, toDocument } from "./mongodb-document.ts";
import type { MongoReader } from "./mongodb-reader.ts";
import { DuplicateIdError, OutcomeUnknownError, StoreUnavailableError } from "./store.ts";

/** Why the server did not store a record. */
interface WriteFailure {
  index: number;
  code: number;
  errmsg: string;
  /** The index whose key is taken. */
  keyPattern?: object;
}

const unauthorized = 13;
const documentValidationFailure = 121;
const userWritesBlocked = 371;
const duplicateKey = 11_000;
const notWritablePrimary = 10_107;

/**
 * What surely was not written. Any other code can come of a primary that is deposed, or of a shard
 * that did not reply.
 */
const refusals = [duplicateKey, documentValidationFailure, userWritesBlocked];

/**
 * Inserts records and settles each on its own. What an attempt left open is sent again under
 * the same id until it is settled or three quarters of a call's time are over: so the caller
 * gets a reply, with the id, before its deadline, and the next batch has time for an attempt.
 *
 * Only the first attempt can show that a record was not written. Once an attempt is open, it
 * may still be in flight whatever later ones meet, so that only these settle a record: a
 * replay stored it; or a replay met its id, and what is read back under it is committed and
 * either the same or not. A replay that was refused settles nothing.
 *
 * An outcome that stays open may still be settled after the reply. The limit that each attempt
 * has at the server (`maxTimeMS`) ends one that has begun; nothing here can end one that a
 * network or a stopped server holds back, and that TCP may still deliver. A deposed primary
 * cannot commit it, and a replay under the same id makes it a duplicate.
 *
 * @param attemptMs a quarter of the time that a call may take, in milliseconds
 * @throws {StoreUnavailableError} surely nothing was written
 */
export async function insertAndReplay(
  db: Db,
  reader: MongoReader,
  investors: Investor[],
  attemptMs: number,
): Promise<(undefined | Error)[]> {
  const outcomes = new Map<Investor, undefined | Error>();
  const end = performance.now() + 3 * attemptMs;
  // Not 0, which is no limit to MongoDB.
  const limitMs = () => Math.max(1, Math.min(attemptMs, end - performance.now()));
  let open = investors;
  let cause: unknown;

  for (let attempt = 0; open.length > 0 && performance.now() < end; attempt += 1) {
    try {
      const failures = await insert(db, open, limitMs());
      const duplicates: Investor[] = [];
      for (const [i, investor] of open.entries()) {
        const failure = failures.get(i);
        if (failure === undefined) outcomes.set(investor, undefined);
        else if (attempt > 0 && failure.code === duplicateKey) duplicates.push(investor);
        else if (attempt > 0 || !refusals.includes(failure.code)) cause = toError(failure);
        else outcomes.set(investor, toError(failure));
      }
      if (duplicates.length > 0) {
        const ids = duplicates.map(({ id }) => id);
        const found = await reader.find(ids, limitMs());
        for (const investor of duplicates) {
          const stored = found.get(investor.id);
          // What the replay met was rolled back.
          if (stored === undefined) continue;
          const isOurs = equals(InvestorSchema, stored, investor);
          outcomes.set(investor, isOurs ? undefined : new DuplicateIdError());
        }
      }
    } catch (error) {
      if (attempt === 0 && error instanceof StoreUnavailableError) throw error;
      cause = error;
    }
    open = open.filter((investor) => !outcomes.has(investor));
    // An election takes longer than this, and the driver waits for its end by itself.
    if (open.length > 0) await delay(attemptMs / 25);
  }

  if (open.length > 0) {
    const unknown = new OutcomeUnknownError("the insert may or may not be done", { cause });
    for (const investor of open) outcomes.set(investor, unknown);
  }
  return investors.map((investor) => outcomes.get(investor));
}

/**
 * Sends one insert. Returns why records were not stored, by their index.
 *
 * @throws {StoreUnavailableError} this attempt surely wrote nothing
 * @throws {unknown} anything else leaves the outcome of all of them open
 */
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
  };
  const reply = await runCommand(db, command, limitMs).catch((error) => {
    // The server's message repeats the command, and so the records.
    if (error instanceof MongoServerError && error.code === unauthorized) {
      throw new StoreUnavailableError(`not authorized to insert into ${db.databaseName}`);
    }
    throw isSurelyNotWritten(error) ? unavailable(error) : error;
  });
  // Without a majority the driver throws, and nothing of it is sure. With one, the duplicates
  // are too: the server has waited for all that stood in its log when it replied.
  const failures: WriteFailure[] = reply.writeErrors ?? [];
  return new Map(failures.map((failure) => [failure.index, failure]));
}

function isSurelyNotWritten(error: unknown): boolean {
  // It has the code of what ended the wait for a majority, after the write.
  if (error instanceof MongoWriteConcernError) return false;
  return (
    // What the driver says of a connection that it could not make, or not authenticate.
    (error instanceof MongoNetworkError && error.hasErrorLabel("SystemOverloadedError")) ||
    (error instanceof MongoError && error.hasErrorLabel("HandshakeError")) ||
    error instanceof MongoServerSelectionError ||
    (error instanceof Error && error.name === "MongoWaitQueueTimeoutError") ||
    (error instanceof MongoServerError && error.code === notWritablePrimary)
  );
}

function toError({ code, errmsg, keyPattern = { _id: 1 } }: WriteFailure): Error {
  if (code === userWritesBlocked) return new StoreUnavailableError("writes are blocked");
  if (code !== duplicateKey) return new Error(errmsg);
  // The server's message holds the key, and so a part of the record.
  return "_id" in keyPattern
    ? new DuplicateIdError()
    : new Error("a unique index besides that of _id refuses it");
}
