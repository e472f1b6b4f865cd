import { setTimeout as delay } from "node:timers/promises";
import { equals } from "@bufbuild/protobuf";
import { type Investor, InvestorSchema } from "../../gen/investor/v1/investor_pb.js";
import { DuplicateIdError, OutcomeUnknownError, StoreUnavailableError } from "./store.ts";

/** What {@link insertAndReplay} does its work with. */
export interface InsertSteps {
  /**
   * Sends one insert and tells of each record that was not stored, by its index, why.
   *
   * @throws {StoreUnavailableError} surely nothing was written
   * @throws {unknown} anything else leaves the outcome of all of them open
   */
  insert(investors: Investor[], limitMs: number): Promise<Map<number, WriteFailure>>;
  /** Reads the records with these ids that a majority has. */
  findAll(ids: string[], limitMs: number): Promise<Map<string, Investor>>;
  /** For how long unknown outcomes are pursued, in milliseconds. */
  timeLimitMs: number;
}

/** Why the server did not store a record. */
export interface WriteFailure {
  code: number;
  errmsg: string;
}

const duplicateKey = 11_000;

/** How long one attempt may take, in milliseconds; a replay has to fit behind it. */
const attemptMs = 2_500;

/** How long to wait before a replay, in milliseconds. */
const pauseMs = 100;

/**
 * Inserts records and settles each on its own. What an attempt left open is sent again under
 * the same id until it is settled or the time is up: a duplicate that a replay meets is the
 * record itself if its content is the same.
 */
export async function insertAndReplay(
  investors: Investor[],
  { insert, findAll, timeLimitMs }: InsertSteps,
): Promise<(undefined | Error)[]> {
  const outcomes = new Map<Investor, undefined | Error>();
  const end = performance.now() + timeLimitMs;
  let open = investors;
  let lastCause: unknown;

  for (let attempt = 0; open.length > 0; attempt += 1) {
    const limitMs = Math.ceil(Math.min(attemptMs, end - performance.now()));
    if (limitMs <= 0) break;
    if (attempt > 0) await delay(Math.min(pauseMs, limitMs));
    try {
      const failures = await insert(open, limitMs);
      const duplicates: Investor[] = [];
      for (const [i, investor] of open.entries()) {
        const failure = failures.get(i);
        if (failure?.code === duplicateKey && attempt > 0) duplicates.push(investor);
        else outcomes.set(investor, failure && toError(failure));
      }
      if (duplicates.length > 0) {
        const stored = await findAll(idsOf(duplicates), limitMs);
        for (const investor of duplicates) settleByContent(investor, stored.get(investor.id));
      }
    } catch (cause) {
      if (attempt === 0 && cause instanceof StoreUnavailableError) throw cause;
      lastCause = cause;
    }
    open = open.filter((investor) => !outcomes.has(investor));
  }

  function settleByContent(investor: Investor, stored: Investor | undefined): void {
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
