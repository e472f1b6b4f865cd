import { addAbortListener } from "node:events";
import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import { maxRecordBytes } from "../investor/investor.ts";
import type { Range } from "../investor/paging.ts";

/** The largest limit of a list: even the largest records then fit in a MongoDB reply of 16 MiB. */
export const maxListed = Math.min(1_001, Math.floor((8 * 1024 * 1024) / maxRecordBytes));

/**
 * Where records are kept. Every implementation keeps all of these promises; the contract suite in
 * test/store checks each one.
 *
 * A call whose signal aborts rejects soon after: with the signal's reason if it surely changed
 * nothing, with {@link OutcomeUnknownError} if it is an insert that may have been written.
 */
export interface Store {
  /**
   * Stores a record under its id, a UUID in lower-case canonical text. Once this resolves, the
   * record survives a crash of the process and power loss.
   *
   * @throws {DuplicateIdError} the id is taken; nothing was written
   * @throws {RecordRefusedError} the database rejects this record permanently; nothing was written
   * @throws {StoreUnavailableError} surely not written
   * @throws {OutcomeUnknownError} it may have been written, or may still be written later
   */
  insert(investor: Investor, signal?: AbortSignal): Promise<void>;

  /**
   * The record with this id (a UUID in lower-case canonical text), or undefined. Sees every insert,
   * by any process, that resolved before the call.
   *
   * @param call its signal may be created lazily, on first access
   * @throws {StoreUnavailableError} it could not be read
   */
  find(id: string, call?: { readonly signal: AbortSignal }): Promise<Investor | undefined>;

  /**
   * At most `limit` records ({@link maxListed} or fewer), strictly ascending by id, starting after
   * the id `after`. Sees what {@link find} sees, and is as fast at the end as at the start.
   *
   * @throws {StoreUnavailableError} it could not be read
   * @throws {Error} the database is damaged there, or its reply is not in order
   */
  list(range: Range, signal?: AbortSignal): Promise<Investor[]>;

  /**
   * Resolves if the store can serve now, except for damaged records. If a restart would find
   * another database, calls `onFatal` and rejects.
   */
  ping(signal?: AbortSignal): Promise<void>;

  /**
   * Finishes accepted inserts and releases everything. Later calls of other methods reject with
   * {@link StoreClosedError}; calling it again returns the outcome of the first call.
   *
   * @throws {Error} for operators: the SQLite file still needs its WAL
   */
  close(): Promise<void>;
}

/** The timeout of a store, and the callbacks through which it reports; some are of SQLite alone. */
export interface StoreOptions {
  /** Timeout of a call to MongoDB, in milliseconds. */
  requestTimeoutMs: number;
  observe: StoreObserver;
  /** Called after each batch of inserts: without an error if it stored a record, with one if the database refused all. */
  onWritable?(refusal?: Error): void;
  /**
   * Called once if the store can no longer be used and its process has to end: a commit with an
   * unknown outcome, a file that was moved, a lock that SQLite waited for in vain, a writer thread that
   * died, another program's collection, or mixed-up replies.
   */
  onFatal(error: Error): void;
  /** Called with warnings that operators should act on. */
  onWarning?(message: string): void;
  /** Called if the file was created, or found empty: there are no records. */
  onNew?(path: string): void;
  /** Called with the WAL's size in bytes, on each {@link Store.ping}. */
  onWalSize?(bytes: number): void;
}

/** Called after each database operation: its duration and, if calls share it, their number. */
export type StoreObserver = (
  operation: "insert" | "find" | "list" | "check",
  durationMs: number,
  batchSize?: number,
) => void;

/** Reports to {@link StoreOptions.onWritable} what the outcomes of a batch of inserts say. */
export function noteOutcomes(
  outcomes: readonly unknown[],
  onWritable: StoreOptions["onWritable"],
): void {
  const isStored = outcomes.includes(undefined);
  const refusal = outcomes.find((each) => each instanceof StoreUnavailableError);
  if (isStored || refusal) onWritable?.(isStored ? undefined : refusal);
}

/**
 * Waits for work that cannot be aborted; rejects with the signal's reason if the signal aborts
 * first. Removes its listener, since a signal can long outlive the work.
 */
export async function raceWithSignal<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  const { promise, reject } = Promise.withResolvers<never>();
  using _ = addAbortListener(signal, () => reject(signal.reason));
  return await Promise.race([work, promise]);
}

class StoreError extends Error {
  override name = this.constructor.name;
}

/** A record with this id exists. */
export class DuplicateIdError extends StoreError {
  constructor() {
    super("the id is taken");
  }
}

/** The store cannot be reached, cannot write, or refuses the record; the call changed nothing. */
export class StoreUnavailableError extends StoreError {}

/** The database rejects this record permanently, as an index of another program does; the call changed nothing. */
export class RecordRefusedError extends StoreError {}

/** The store was closed or has died: no later call will succeed. */
export class StoreClosedError extends StoreUnavailableError {
  constructor(message = "the store is closed") {
    super(message);
  }
}

/** The store's files are no longer at its path; a restart would find others, or none. */
export class FilesGoneError extends StoreError {}

/** The record may have been written; a retry under the same id settles it. */
export class OutcomeUnknownError extends StoreError {}
