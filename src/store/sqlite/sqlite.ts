import { realpathSync, statSync } from "node:fs";
import { extname } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setImmediate as nextTurn } from "node:timers/promises";
import { Worker } from "node:worker_threads";
import type { Investor } from "../../../gen/investor/v1/investor_pb.js";
import { createBatcher } from "../batcher.ts";
import {
  DuplicateIdError,
  FilesGoneError,
  noteOutcomes,
  OutcomeUnknownError,
  type Store,
  StoreClosedError,
  type StoreOptions,
} from "../store.ts";
import { checkIdentity, makeSqliteFile } from "./file.ts";
import { sizeOf } from "./paths.ts";
import { createSqliteReader } from "./reader.ts";
import { type Row, toRow } from "./schema.ts";
import { explainError, hasCode, resultCode, toFault, toStoreError } from "./sqlite-errors.ts";
import type { Closed, Outcome, Started } from "./writer.ts";

type SqliteOptions = Omit<StoreOptions, "requestTimeoutMs">;

/**
 * The page cache for lookups, in KiB. SQLite's default of 2 MiB cannot hold the interior pages of a
 * large table. Lists read each page once, so they use a connection with the default.
 */
const lookupCacheKib = 16 * 1024;

/**
 * Keeps records in an SQLite file. One thread writes, in batches that share a commit; reads run on
 * the calling thread. Other processes may use the file too.
 *
 * @param path the file; it and its folder are created if missing
 * @throws {Error} for operators, if the file cannot be used
 */
export async function createSqliteStore(path: string, options: SqliteOptions): Promise<Store> {
  const { observe, onWritable, onWalSize } = options;
  const { writer, connections, reader } = await openFile(path, options).catch((error) => {
    const message = explainError(error);
    throw new Error(`cannot use the SQLite file ${path}: ${message}`, { cause: error });
  });
  const batcher = createBatcher("insert", observe, async (investors: Investor[]) => {
    const outcomes = (await writer.send(investors.map(toRow))).map(toResult);
    noteOutcomes(outcomes, onWritable);
    return outcomes;
  });

  let closing: Promise<void> | undefined;

  function toReadError(error: unknown): Error {
    if (error instanceof FilesGoneError) writer.die(error);
    const failure = toFault(error);
    // SQLite has waited for the lock for ten seconds, in which it blocked the event loop, and would again.
    if (hasCode(error, resultCode.protocol)) writer.die(new Error(`${path}: ${failure.message}`));
    return toStoreError(failure);
  }

  function expectOpen(): void {
    if (closing !== undefined) throw new StoreClosedError();
    writer.expectUsable();
  }

  async function read<T>(query: () => T, signal?: AbortSignal): Promise<T> {
    signal?.throwIfAborted();
    expectOpen();
    try {
      return query();
    } catch (error) {
      throw toReadError(error);
    }
  }

  return {
    insert: (investor, signal) => batcher.add(investor, signal),
    find: (id) =>
      new Promise((resolve, reject) => {
        expectOpen();
        reader.find({ id, resolve, reject: (error) => reject(toReadError(error)) });
      }),
    list: (range, signal) => read(() => reader.list(range), signal),

    ping: () =>
      read(() => {
        checkIdentity(path, writer.identity);
        onWalSize?.(sizeOf(writer.wal));
        // Checks the table without reading its pages, which can be damaged.
        reader.list({ limit: 0 }, "check");
      }),

    close() {
      closing ??= batcher.close().then(async () => {
        // Accepted lookups run in the next turn.
        await nextTurn();
        for (const db of connections) db.close();
        // The last connection to close deletes the WAL, so it is the thread's.
        const left = await writer.close();
        if (left && sizeOf(writer.wal) > 0) {
          throw new Error(`left its latest records in ${writer.wal}: ${left}`);
        }
      });
      return closing;
    },
  };
}

/** Opens the file in the writer thread first, then for reads on this one. */
async function openFile(path: string, options: SqliteOptions) {
  const { observe, onWarning, onNew } = options;
  makeSqliteFile(path);
  const writer = await startWriter(path, options);
  if (writer.isNew) onNew?.(path);
  if ((statSync(path).mode & 0o077) !== 0) {
    onWarning?.(`${path} is open to others than its owner: chmod 600 it and the files beside it`);
  }
  const connections: DatabaseSync[] = [];
  function connect(): DatabaseSync {
    const db = new DatabaseSync(path, { timeout: 0 });
    connections.push(db);
    db.exec("PRAGMA query_only = ON; PRAGMA cell_size_check = ON");
    return db;
  }
  try {
    const lookups = connect();
    lookups.exec(`PRAGMA cache_size = -${lookupCacheKib}`);
    return { writer, connections, reader: createSqliteReader(lookups, connect(), observe) };
  } catch (error) {
    for (const db of connections) db.close();
    await writer.close();
    throw error;
  }
}

/** Starts the writer thread and waits until it is ready. */
async function startWriter(path: string, options: SqliteOptions) {
  const { onWarning, onFatal } = options;
  // The thread's file is `.ts` when running from source, `.js` once built.
  const file = new URL(`./writer${extname(import.meta.url)}`, import.meta.url);
  const worker = new Worker(file, { workerData: path, execArgv: [] });
  let cause = new Error("it ended by itself");
  worker.once("error", (error) => {
    cause = error as Error;
  });
  const exited = new Promise<void>((resolve) => worker.once("exit", () => resolve()));
  const pending: PromiseWithResolvers<Outcome[]>[] = [];
  /** Why the thread accepts no more batches: it died, its file was moved, or the store is closing. */
  let unusable: Error | undefined;
  let left: Closed["left"];
  const { identity, isNew } = await new Promise<Started>((resolve, reject) => {
    worker.on("message", (message: Outcome[] | Started | Closed | string) => {
      if (Array.isArray(message)) pending.shift()?.resolve(message);
      else if (typeof message === "string") onWarning?.(message);
      else if ("left" in message) left = message.left;
      else resolve(message);
    });
    void exited.then(() => reject(cause));
  });
  const wal = `${realpathSync(path)}-wal`;

  // Through the promise: a listener added here could miss an exit right after the first message.
  void exited.then(() => {
    try {
      // A vanished disk can fail a write before the next ping notices.
      checkIdentity(path, identity);
    } catch (error) {
      if (error instanceof FilesGoneError) die(error);
    }
    const why = `the thread that writes to ${path} died: ${explainError(cause)}`;
    die(new Error(why, { cause }));
  });

  /** Stops accepting batches, for the first reason that has to end the process. */
  function die(reason: Error): void {
    if (unusable !== undefined) return;
    unusable = reason;
    for (const each of pending) {
      each.reject(new OutcomeUnknownError(reason.message, { cause: reason }));
    }
    onFatal(reason);
  }

  function expectUsable(): void {
    if (unusable !== undefined) throw new StoreClosedError(unusable.message);
  }

  return {
    identity,
    isNew,
    wal,
    die,
    /** @throws {StoreClosedError} the thread accepts no more batches, and the process is about to end */
    expectUsable,
    async send(rows: Row[]): Promise<Outcome[]> {
      expectUsable();
      const reply = Promise.withResolvers<Outcome[]>();
      pending.push(reply);
      worker.postMessage(rows);
      return reply.promise;
    },
    async close(): Promise<Closed["left"]> {
      unusable ??= new Error("the store is closed");
      worker.postMessage("close");
      await exited;
      return left;
    },
  };
}

function toResult(outcome: Outcome): undefined | Error {
  if (outcome === "written") return undefined;
  return outcome === "duplicate" ? new DuplicateIdError() : toStoreError(outcome);
}
