import { setTimeout as delay } from "node:timers/promises";
import { equals } from "@bufbuild/protobuf";
import { type Investor, InvestorSchema } from "../../gen/investor/v1/investor_pb.js";
import { DuplicateIdError, OutcomeUnknownError, StoreUnavailableError } from "./store.ts";

/** What {@link insertAndReplay} does its work with. */
export interface InsertSteps {
  /**
   * Sends one insert and tells of each record that was not stored, by its index, why.
   *
   * @throws {StoreUnavailableError} this attempt surely wrote nothing
   * @throws {unknown} anything else leaves the outcome of all of them open
   */
  insert(investors: Investor[], limitMs: number): Promise<Map<number, WriteFailure>>;
  /** Reads the records with these ids; every committed one is among them. */
  find(ids: string[], limitMs: number): Promise<Map<string, Investor>>;
  /** A quarter of the time that a call may take, in milliseconds: the limit of an attempt. */
  attemptMs: number;
}

/** Why the server did not store a record. */
export interface WriteFailure {
  code: number;
  errmsg: string;
}

const duplicateKey = 11_000;

/** The primary was deposed or is shut down: 91, 189, 10107, 11600 and 11602 of MongoDB's codes. */
const stateChanges = [91, 189, 10_107, 11_600, 11_602];

/**
 * Inserts records and settles each on its own. What an attempt left open is sent again under
 * the same id until it is settled or three quarters of a call's time are over: so the caller
 * is told, with the id, before its deadline, and the next batch has time for its own attempt.
 *
 * Only the first attempt can show that a record was not written. Once an attempt is open, it
 * may still be on its way whatever later ones meet, so that only these settle a record: a
 * replay stored it; or a replay met its id, and what is read back under it is committed and
 * either the same or not. A replay that was refused settles nothing.
 *
 * An outcome that stays open may be settled after it was told. The limit that each attempt has
 * at the server (`maxTimeMS`) ends one that has begun; nothing here can end one that a network
 * or a stopped server holds back, and on whose connection TCP may still deliver it. A deposed
 * primary cannot commit it, and a replay under the same id makes it a duplicate.
 *
 * @throws {StoreUnavailableError} surely nothing was written
 */
export async function insertAndReplay(
  investors: Investor[],
  { insert, find, attemptMs }: InsertSteps,
): Promise<(undefined | Error)[]> {
  const outcomes = new Map<Investor, undefined | Error>();
  const end = performance.now() + 3 * attemptMs;
  // Not 0, which is no limit to MongoDB.
  const limitMs = () => Math.max(1, Math.min(attemptMs, end - performance.now()));
  let open = investors;
  let lastCause: unknown;

  for (let attempt = 0; open.length > 0 && performance.now() < end; attempt += 1) {
    try {
      const failures = await insert(open, limitMs());
      const duplicates: Investor[] = [];
      for (const [i, investor] of open.entries()) {
        const failure = failures.get(i);
        if (failure === undefined) outcomes.set(investor, undefined);
        else if (attempt > 0 && failure.code === duplicateKey) duplicates.push(investor);
        else if (attempt > 0 || stateChanges.includes(failure.code)) lastCause = toError(failure);
        else outcomes.set(investor, toError(failure));
      }
      if (duplicates.length > 0) {
        const stored = await find(idsOf(duplicates), limitMs());
        for (const investor of duplicates) settleByContent(investor, stored.get(investor.id));
      }
    } catch (cause) {
      if (attempt === 0 && cause instanceof StoreUnavailableError) throw cause;
      lastCause = cause;
    }
    open = open.filter((investor) => !outcomes.has(investor));
    // An election takes longer than this, and the driver waits for its end by itself.
    if (open.length > 0) await delay(attemptMs / 25);
  }

  function settleByContent(investor: Investor, stored: Investor | undefined): void {
    // What the replay met was rolled back.
    if (stored === undefined) return;
    const isOurs = equals(InvestorSchema, stored, investor);
    outcomes.set(investor, isOurs ? undefined : toError({ code: duplicateKey, errmsg: "" }));
  }

  const unknown = new OutcomeUnknownError("the insert may or may not be done", {
    cause: lastCause,
  });
  return investors.map((investor) => (outcomes.has(investor) ? outcomes.get(investor) : unknown));
}

function toError({ code, errmsg }: WriteFailure): Error {
  return code === duplicateKey ? new DuplicateIdError("the id is taken") : new Error(errmsg);
}

function idsOf(investors: Investor[]): string[] {
  return investors.map(({ id }) => id);
}
