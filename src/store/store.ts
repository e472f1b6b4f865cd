import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import { maxRecordBytes } from "../investor/investor.ts";
import type { Range } from "../investor/paging.ts";

/** The most records that a list may ask for: even the largest then fit in MongoDB's reply of 16 MiB. */
export const maxListed = Math.min(1_001, Math.floor((8 * 1024 * 1024) / maxRecordBytes));

/**
 * Where records live. Every implementation keeps all of these promises; the
 * contract suite in test/store checks them on each.
 *
 * A call whose signal aborts rejects soon after. It rejects with the signal's
 * reason when it surely changed nothing, and an insert that may have been written
 * rejects with {@link OutcomeUnknownError}.
 */
export interface Store {
  /**
   * Stores a record under its id, a UUID in lower-case canonical text. When it
   * resolves, the record survives a crash of the process and a loss of power.
   *
   * @throws {DuplicateIdError} the id is taken; nothing was written
   * @throws {StoreUnavailableError} surely not written
   * @throws {OutcomeUnknownError} it may or may not be written, now or later
   */
  insert(investor: Investor, signal?: AbortSignal): Promise<void>;

  /**
   * The record with this id (a UUID in lower-case canonical text), or undefined. It
   * sees every insert of any process that resolved before the call.
   *
   * @param call whose signal is made when it is first asked for
   * @throws {StoreUnavailableError} it could not be read
   */
  find(id: string, call?: { readonly signal: AbortSignal }): Promise<Investor | undefined>;

  /**
   * At most `limit` records ({@link maxListed} or fewer), strictly ascending by id, starting after the id
   * `after`. It sees what {@link find} sees, and takes no longer at the end than at the start.
   *
   * @throws {StoreUnavailableError} it could not be read
   * @throws {Error} the database is damaged there: see {@link expectOrder}
   */
  list(range: Range, signal?: AbortSignal): Promise<Investor[]>;

  /**
   * Resolves if the store can serve now, except for damaged records. If the next start would find
   * another database, it calls `onFatal` and rejects.
   */
  ping(signal?: AbortSignal): Promise<void>;

  /** The files of the certificates and keys that it connects with. */
  readonly files?: string[];

  /**
   * Connects with these files as they are now, and cuts no call.
   *
   * @param url a database URL for the same database that counts from now on
   * @throws {Error} for operators to read, if they cannot be used; the old ones stay in use
   */
  reload?(url?: string): Promise<void>;

  /**
   * Finishes the accepted inserts and releases everything. Later calls of the other
   * methods reject with {@link StoreClosedError}; calling it again settles with the first.
   *
   * @throws {Error} for operators: the file of SQLite needs its WAL still, since its disk fails
   */
  close(): Promise<void>;
}

/** What a store needs, and the callbacks by which it reports. */
export interface StoreOptions {
  /** Timeout of a call, in milliseconds. */
  requestTimeoutMs: number;
  observe: StoreObserver;
  /** Has the database URL read again, and {@link Store.reload} called if it is another; absent if it stays. */
  rereadUrl?: (() => Promise<void>) | undefined;
  /**
   * Called with why the database refuses creates, or without it if it takes them: when it is open,
   * after a create that passed, and once a second from one that was refused until one would pass.
   */
  onWritable?(refusal?: Error): void;
  /** Called by SQLite with the size of its WAL in bytes, with each {@link Store.ping}. */
  onWalSize?(bytes: number): void;
  /** Called by SQLite with why its WAL could not be brought into the file; records stay in it. */
  onCheckpointFailure?(why: string): void;
  /** Called with what operators should know and change. */
  onWarning(message: string): void;
  /** Called by SQLite if it has made the file, or found it empty: it has no records. */
  onNew?(path: string): void;
  /**
   * Called once if the store can no longer be used and its process has to end: a commit whose
   * outcome the disk left open, a file that was moved, a writer thread that died, or a collection
   * of another program.
   */
  onFatal(error: Error): void;
}

/** Called after each operation of the database: its duration and, if calls share it, how many. */
export type StoreObserver = (
  operation: "insert" | "find" | "list" | "check",
  durationMs: number,
  batchSize?: number,
) => void;

/**
 * Refuses a page that its database returned in a wrong order, so that no walk over pages is endless,
 * and ids that are none.
 *
 * @throws {Error} the ids do not ascend strictly beyond `after`, or one is no UUID
 */
export function expectOrder(page: Investor[], after: string | undefined): void {
  let last = after ?? "";
  for (const { id } of page) {
    if (id <= last || id.length !== 36) throw damageAfter(last, new Error(`the next id is ${id}`));
    last = id;
  }
}

/** The error of a list that meets damage after the record with this id, or at the first record. */
export function damageAfter(after: string | undefined, cause: unknown): Error {
  const where = after ? `after the id ${after}` : "at the first record";
  return new Error(`the database is damaged ${where}: ${(cause as Error).message}`, { cause });
}

/**
 * Waits for work that cannot be aborted; rejects with the signal's reason if that aborts first.
 * Its listener is removed, since a signal can outlast the work by far.
 */
export async function raceWithSignal<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  const { promise, reject } = Promise.withResolvers<never>();
  const onAbort = () => reject(signal.reason);
  signal.addEventListener("abort", onAbort);
  if (signal.aborted) onAbort();
  try {
    return await Promise.race([work, promise]);
  } finally {
    signal.removeEventListener("abort", onAbort);
  }
}

class StoreError extends Error {
  override name = this.constructor.name;
}

/** A database URL is malformed; the message does not repeat it. */
export class DatabaseUrlError extends StoreError {}

/** A record with this id is stored already. */
export class DuplicateIdError extends StoreError {
  constructor() {
    super("the id is taken");
  }
}

/** The store cannot be reached, cannot write, or refuses the record; the call changed nothing. */
export class StoreUnavailableError extends StoreError {}

/** The store was closed or has died, so that no call to it will succeed any more. */
export class StoreClosedError extends StoreUnavailableError {
  constructor(message = "the store is closed") {
    super(message);
  }
}

/** The files of the store are no longer at its path; the next start would find others, or none. */
export class FilesGoneError extends StoreError {}

/** The record may or may not have been written; a repetition under the same id settles it. */
export class OutcomeUnknownError extends StoreError {}
