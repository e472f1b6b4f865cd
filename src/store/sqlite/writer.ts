/**
 * The writer thread. It sends {@link Started} once ready, and strings as warnings for operators. It
 * commits each batch of rows that it receives in one transaction, and replies with their outcomes.
 * A commit whose outcome is unknown, or a lock that cannot be taken, ends the thread.
 */
import { parentPort, workerData } from "node:worker_threads";
import { checkpoint, createCheckpoints } from "./checkpoint.ts";
import { countCommit } from "./commit-count.ts";
import { identify, openSqliteFile } from "./file.ts";
import { insertSql, type Row } from "./schema.ts";
import { explainError, type Fault, hasCode, resultCode, toFault } from "./sqlite-errors.ts";

/** Sent once ready: the file's {@link identify identity}, and whether it was empty. */
export interface Started {
  identity: string;
  isNew: boolean;
}

/** Sent at the end: why the WAL has records that the file lacks, if it does. */
export type Closed = { left: string | undefined };

/** The outcome of a row: written, its id taken, or another failure. */
export type Outcome = "written" | "duplicate" | Fault;

/** Minimum interval of warnings, in milliseconds. */
const warningIntervalMs = 60_000;

const port = parentPort;
if (port === null) throw new Error("the writer runs as a thread only");
const path = workerData as string;
const warn = (text: string) => port.postMessage(text);
const { db, isNew } = await openSqliteFile(path, warn);
const readCount = db.prepare("PRAGMA user_version");
let warnedAt = -Infinity;
const insert = db.prepare(insertSql);
const checkpointIfLarge = createCheckpoints(db, path, (why) => {
  if (performance.now() - warnedAt < warningIntervalMs) return;
  warnedAt = performance.now();
  warn(`the WAL of ${path} cannot be checkpointed, and grows: ${why}`);
});
const hasId = db.prepare("SELECT 1 FROM investors WHERE id = unhex(?, '-')");

port.on("message", (message: Row[] | "close") => {
  if (message === "close") {
    port.postMessage({ left: close() } satisfies Closed);
    port.close();
  } else {
    port.postMessage(write(message));
    checkpointIfLarge();
  }
});

port.postMessage({ identity: identify(path), isNew } satisfies Started);

/** Closes the file; the last connection also deletes the WAL, but says nothing if it fails. */
function close(): Closed["left"] {
  try {
    return checkpoint(db);
  } catch (error) {
    return explainError(error);
  } finally {
    db.close();
  }
}

/**
 * Commits rows together. If one meets a damaged page or another program's rule, commits each by
 * itself, so that only those rows fail.
 */
function write(rows: Row[]): Outcome[] {
  const result = transact(() => {
    const outcomes = rows.map(insertRow);
    if (outcomes.includes("written")) countCommit(db, readCount);
    return outcomes;
  });
  if (!(result instanceof Error)) return result;
  const isOfRow = hasCode(result, resultCode.corrupt, resultCode.constraint);
  if (isOfRow && rows.length > 1) return rows.flatMap((row) => write([row]));
  return rows.map(() => toFault(result));
}

function insertRow(row: Row): Outcome {
  if (insert.run(...row).changes === 1) return "written";
  if (hasId.get(row[0] ?? null)) return "duplicate";
  return { message: "a trigger leaves the record out", errcode: resultCode.triggerConstraint };
}

/**
 * Runs a function in a transaction.
 *
 * @returns its result, or SQLite's error if surely nothing was written
 * @throws {Error} the transaction may be on disk, or the file can no longer be used
 */
function transact<T>(write: () => T): T | Error {
  let committing = false;
  try {
    db.exec("BEGIN IMMEDIATE");
    const result = write();
    committing = true;
    db.exec("COMMIT");
    return result;
  } catch (error) {
    if (isOutcomeUnknown(error, committing)) throw error;
    // SQLite has waited for a lock for ten seconds, and would again each time.
    if (hasCode(error, resultCode.protocol)) throw error;
    if (db.isTransaction) db.exec("ROLLBACK");
    return error as Error;
  }
}

/**
 * Whether a failed batch may be on disk, or later batches may not get there.
 *
 * SQLite fails a COMMIT with FULL or IOERR_WRITE only while writing to the WAL (walFrames in
 * wal.c). The last bytes of that make the commit frame valid: a failed write has not written them,
 * and the next batch overwrites the rest. All other steps come after the commit frame: the sync,
 * and the entry in the WAL's index, which may have to grow.
 *
 * Before COMMIT nothing can be valid. But after a failed sync, including that of the WAL's header,
 * Linux regards the lost pages as clean, and no later sync would write them.
 */
function isOutcomeUnknown(error: unknown, committing: boolean): boolean {
  return committing
    ? !hasCode(error, resultCode.full, resultCode.writeError)
    : hasCode(error, resultCode.syncError, resultCode.folderSyncError);
}
