import { realpathSync } from "node:fs";
import { equals } from "@bufbuild/protobuf";
import { type Investor, InvestorSchema } from "../../gen/investor/v1/investor_pb.js";
import { findViolations, textFields } from "../investor/investor.ts";
import type { Range } from "../investor/paging.ts";
import { settleInsert } from "../service/replay.ts";
import { type Database, openStore } from "../store/database-url.ts";
import { createMongoStore } from "../store/mongodb/mongodb.ts";
import { emptyWal } from "../store/sqlite/checkpoint.ts";
import { openSqliteFile, openSqliteFileToRead, refuseDamage } from "../store/sqlite/file.ts";
import { createSqliteReader } from "../store/sqlite/reader.ts";
import { selectedFrom } from "../store/sqlite/schema.ts";
import { explainError } from "../store/sqlite/sqlite-errors.ts";
import {
  DuplicateIdError,
  maxListed,
  OutcomeUnknownError,
  RecordRefusedError,
  type Store,
} from "../store/store.ts";
import { describeViolations, type Source, type Tally, type Target } from "./source-and-target.ts";

/**
 * Deadline of a batch, in milliseconds. An attempt gets a quarter of it, more than a default
 * election takes; an attempt with an unknown outcome is retried for the rest.
 */
const requestTimeoutMs = 60_000;
const attemptMs = requestTimeoutMs / 4;

/** A fatal error also fails the call that causes it. */
const options = { requestTimeoutMs, observe() {}, onFatal() {} };

/** How long to wait for other processes that keep the target's WAL in use, in milliseconds. */
const walTimeoutMs = 30_000;

interface Reader {
  list(range: Range): Investor[] | Promise<Investor[]>;
  /** A fault of a record beyond those of its fields. */
  faultOf?(investor: Investor): string | undefined;
  /** Throws if there is damage that reading in order does not meet. It blocks the process. */
  refuseDamage?(): void;
  close(): Promise<void>;
}

/**
 * Opens a database to copy from. An SQLite file is never created or changed, and each page is read in
 * its own transaction, so that a service can checkpoint its WAL meanwhile. From MongoDB, every record
 * that was acknowledged before is read.
 *
 * @param tally told of each record that breaks the rules
 * @throws {Error} if it cannot be used; if MongoDB has no records, or documents that are not records
 */
export async function openStoreSource(database: Database, tally: Tally): Promise<Source> {
  const isMongo = database.kind === "mongodb";
  const reader = isMongo ? await openMongo(database.url) : openSqlite(database.path);

  async function* read() {
    try {
      let after: string | undefined;
      for (;;) {
        const page = await reader.list({ after, limit: maxListed });
        after = page.at(-1)?.id;
        if (after === undefined) break;
        yield page.filter(isRight);
      }
      reader.refuseDamage?.();
    } finally {
      await reader.close();
    }
  }

  function isRight(investor: Investor): boolean {
    const { id } = investor;
    const why = describeViolations(findViolations(investor)) || reader.faultOf?.(investor);
    if (why) tally.leaveOut(`record ${id}`, why);
    return !why;
  }

  return read();
}

function openSqlite(path: string): Reader {
  const db = openSqliteFileToRead(path);
  return {
    list(range) {
      // Opened for each page, since a service may have added columns after the last one.
      db.exec("BEGIN");
      try {
        return createSqliteReader(db, db, () => {}).list(range);
      } finally {
        if (db.isTransaction) db.exec("ROLLBACK");
      }
    },
    faultOf(investor) {
      const text = textFields.map((field) => investor[field]).join("");
      // The driver's replacement for bytes that are not text.
      if (!text.includes("\ufffd")) return undefined;
      const same = `SELECT CAST(concat_ws('', ${selectedFrom(db)}) AS BLOB) = CAST(? AS BLOB) AS isSame
        FROM investors WHERE id = unhex(?, '-')`;
      const isSame = db.prepare(same).get(investor.type + text, investor.id)?.isSame !== 0;
      return isSame ? undefined : "its text is not valid Unicode";
    },
    refuseDamage: () => refuseDamage(db),
    close: async () => db.close(),
  };
}

async function openMongo(url: string): Promise<Reader> {
  const store = createMongoStore(url, options, true);
  try {
    await store.ping();
    // MongoDB creates a database only on the first write, so an empty one may be a wrong name.
    if ((await store.list({ limit: 1 })).length === 0) throw new Error("it holds no records");
    return store;
  } catch (error) {
    await store.close();
    throw error;
  }
}

/**
 * Opens a database to copy to, creating it if missing. Existing records are never changed.
 *
 * @param onWarning called with warnings that operators should act on
 * @throws {Error} for operators, if it cannot be used
 */
export async function openStoreTarget(
  database: Database,
  onWarning: (message: string) => void,
): Promise<Target> {
  const store = await openStore(database, { ...options, onWarning });
  // A MongoDB store is not connected yet.
  await store.ping();

  return {
    async write(investors, tally) {
      const writes = investors.map((investor) => write(store, investor, tally));
      await Promise.allSettled(writes);
      await Promise.all(writes);
    },
    async finish() {
      if (database.kind === "mongodb") return store.close();
      // Fails if the file that was written is no longer at this path.
      await store.ping();
      // Rejects if the file is not complete without its WAL.
      await store.close().catch(() => mergeWal(database.path, walTimeoutMs));
    },
    close: () => store.close(),
  };
}

/**
 * Moves the WAL of a file that this process has closed into it.
 *
 * @param timeoutMs how long to wait for other processes
 * @throws {Error} for operators, if the file still needs its WAL
 */
async function mergeWal(path: string, timeoutMs: number): Promise<void> {
  let why = "another process reads the file; end it and repeat the command";
  try {
    const { db } = await openSqliteFile(path, () => {}, timeoutMs);
    if (await emptyWal(db, timeoutMs).finally(() => db.close())) return;
  } catch (error) {
    why = explainError(error);
  }
  throw new Error(
    `it is complete only with ${realpathSync(path)}-wal, which cannot be checkpointed: ${why}`,
  );
}

async function write(store: Store, investor: Investor, tally: Tally): Promise<void> {
  try {
    await store.insert(investor);
    tally.copied += 1;
  } catch (error) {
    const isUnknown = error instanceof OutcomeUnknownError;
    const { signal } = new AbortController();
    const replayUntil = performance.now() + requestTimeoutMs - attemptMs;
    const stored =
      isUnknown || error instanceof DuplicateIdError
        ? await settleInsert(store, investor, error, replayUntil, signal)
        : (error as Error);
    if (stored instanceof RecordRefusedError) {
      tally.leaveOut(`record ${investor.id}`, stored.message);
    } else if (stored instanceof Error) {
      throw stored;
    } else if (!equals(InvestorSchema, stored, investor)) {
      tally.leaveOut(`record ${investor.id}`, "TO has another one under this id, which stays");
    } else if (isUnknown) {
      tally.copied += 1;
    } else {
      tally.present += 1;
    }
  }
}
