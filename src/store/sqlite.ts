import { extname } from "node:path";
import { setImmediate as nextTurn } from "node:timers/promises";
import { Worker } from "node:worker_threads";
import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import { textFields } from "../investor.ts";
import { uuidToBytes } from "../uuid.ts";
import { Batcher } from "./batcher.ts";
import { isDamage, openSqliteFile, resultCode, resultCodeOf } from "./sqlite-file.ts";
import { createSqliteReader } from "./sqlite-reader.ts";
import type { Reply, Row, RowOutcome } from "./sqlite-writer.ts";
import {
  DuplicateIdError,
  OutcomeUnknownError,
  type Store,
  type StoreObserver,
  StoreUnavailableError,
} from "./store.ts";

/** What a {@link createSqliteStore SQLite store} needs. */
export interface SqliteStoreOptions {
  /** The file; it and its folder are made if they are not there. */
  path: string;
  observe: StoreObserver;
  /**
   * Called once if the store can write no more and its process has to end: a commit
   * whose outcome the disk left open, or a writer thread that died.
   */
  onFatal(error: Error): void;
}

/** For how long a read may hold up the event loop when the file is locked, in milliseconds. */
const readBusyTimeoutMs = 50;

/**
 * Keeps records in an SQLite file. One thread writes, in batches that share a commit;
 * reads run on the calling thread. Other processes may use the file too.
 *
 * @throws {Error} in plain words, if the file cannot be used
 */
export async function createSqliteStore(options: SqliteStoreOptions): Promise<Store> {
  const { observe } = options;
  const db = openSqliteFile(options.path, readBusyTimeoutMs);
  db.exec("PRAGMA query_only = ON");
  const reader = createSqliteReader(db, observe);
  const writer = startWriter(options);
  const batcher = new Batcher<Investor, undefined>({
    async run(investors) {
      const reply = await writer.send(investors.map(toRow));
      if ("failed" in reply) throw noticeDamage(toStoreError(reply.failed, reply.errcode));
      return reply.outcomes.map(toOutcome);
    },
    abandoned: (cause) => new OutcomeUnknownError("the commit was not waited for", { cause }),
    observe: (seconds, size) => observe("insert", seconds, size),
  });

  let damage: Error | undefined;
  let closing: Promise<void> | undefined;

  function noticeDamage(error: Error): Error {
    if (isDamage(error)) damage = error;
    return error;
  }

  async function read<T>(query: () => T, signal?: AbortSignal): Promise<Awaited<T>> {
    signal?.throwIfAborted();
    if (closing !== undefined) throw new StoreUnavailableError("the store is closed");
    try {
      return await query();
    } catch (error) {
      throw noticeDamage(toStoreError((error as Error).message, resultCodeOf(error)));
    }
  }

  return {
    insert: (investor, signal) => batcher.add(investor, signal),
    find: (id, signal) => read(() => reader.find(id), signal),
    list: (range, signal) => read(() => reader.list(range), signal),

    async ping() {
      if (damage !== undefined) throw damage;
      await read(() => reader.list({ limit: 1 }));
    },

    close() {
      closing ??= batcher.close().then(async () => {
        await writer.close();
        // Lookups that were accepted wait for the next turn.
        await nextTurn();
        db.close();
      });
      return closing;
    },
  };
}

/** Runs the writer thread; at most one batch may be under way. */
function startWriter({ path, onFatal }: SqliteStoreOptions) {
  // The thread's file is `.ts` where the sources run as they are, and `.js` once built.
  const file = new URL(`./sqlite-writer${extname(import.meta.url)}`, import.meta.url);
  const worker = new Worker(file, { workerData: path });
  const exited = new Promise<void>((resolve) => worker.once("exit", () => resolve()));
  let pending: PromiseWithResolvers<Reply> | undefined;
  let closing = false;
  let failure: Error | undefined;

  worker.on("message", (reply: Reply) => pending?.resolve(reply));
  worker.on("error", (error) => die(error as Error));
  worker.on("exit", () => {
    if (!closing) die(new Error("it ended by itself"));
  });

  function die(cause: Error): void {
    if (failure !== undefined) return;
    failure = new Error(`the thread that writes to ${path} died: ${cause.message}`, { cause });
    pending?.reject(new OutcomeUnknownError(failure.message, { cause }));
    onFatal(failure);
  }

  return {
    async send(rows: Row[]): Promise<Reply> {
      if (failure !== undefined) throw new StoreUnavailableError(failure.message);
      pending = Promise.withResolvers<Reply>();
      worker.postMessage(rows);
      return pending.promise;
    },
    async close(): Promise<void> {
      closing = true;
      worker.postMessage("close");
      await exited;
    },
  };
}

function toStoreError(message: string, errcode: number | undefined): Error {
  const isKnownToPass =
    errcode === resultCode.busy || errcode === resultCode.full || errcode === resultCode.ioError;
  return isKnownToPass
    ? new StoreUnavailableError(message)
    : Object.assign(new Error(message), { errcode });
}

function toOutcome(outcome: RowOutcome): undefined | Error {
  if (outcome === "written") return undefined;
  if (outcome === "duplicate") return new DuplicateIdError("the id is taken");
  return new Error(outcome.refused);
}

function toRow(investor: Investor): Row {
  return [uuidToBytes(investor.id), investor.type, ...textFields.map((field) => investor[field])];
}
