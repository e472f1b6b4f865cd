/**
 * The writer thread. It sends {@link Started} once ready, and strings as warnings for operators. It
 * commits each batch of rows that it receives in one transaction, and replies with their outcomes.
 * A commit whose outcome is unknown ends the thread.
 */
import { realpathSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { parentPort, workerData } from "node:worker_threads";
import { createCheckpoints } from "./checkpoint.ts";
import { countCommit, pragma } from "./commit-count.ts";
import {
  explainError,
  type Failure,
  hasCode,
  isLockedOut,
  resultCode,
  toFailure,
} from "./errors.ts";
import { identify, openSqliteFile } from "./file.ts";
import { sizeOf } from "./paths.ts";
import { insertRow, type Row } from "./schema.ts";

/** Sent once ready: the file's {@link identify identity}, and whether it was empty. */
export interface Started {
  identity: string;
  isNew: boolean;
}

/** The outcome of a row: written, its id taken, or another failure. */
export type Outcome = "written" | "duplicate" | Failure;

/** Sent when a checkpoint fails; nothing is lost by that. */
export interface CheckpointFailure {
  checkpointFailure: string;
}

/** Sent at the end if the file still needs its WAL, other than for a process that reads it. */
export interface CloseFailure {
  closeFailure: string;
}

/** Minimum interval of warnings about another process that writes, in milliseconds. */
const warningIntervalMs = 3_600_000;

const port = parentPort;
if (port === null) throw new Error("the writer runs as a thread only");
const path = workerData as string;
const warn = (text: string) => port.postMessage(text);
const { db, isNew } = await openSqliteFile(path, warn);
const wal = `${realpathSync(path)}-wal`;
const readCount = db.prepare("PRAGMA user_version");
/** The commit count after the last commit that this process made, or found. */
let lastCount = pragma(db, "user_version");
let warnedAt = -Infinity;
const insert = db.prepare(insertRow);
const checkpoints = createCheckpoints(db, path, (checkpointFailure) => {
  port.postMessage({ checkpointFailure } satisfies CheckpointFailure);
});
const hasId = db.prepare("SELECT 1 FROM investors WHERE id = unhex(?, '-')");

port.on("message", (message: Row[] | "read" | "close") => {
  if (message === "read") {
    port.postMessage(tryRead());
  } else if (message === "close") {
    void close();
  } else {
    port.postMessage(write(message));
    checkpoints.afterCommit();
  }
});

port.postMessage({ identity: identify(path), isNew } satisfies Started);

/** Checkpoints, and closes the file, which deletes the WAL if no other process has the file open. */
async function close(): Promise<void> {
  const result = await checkpoints.beforeClose();
  db.close();
  if (result !== "whole" && sizeOf(wal) > 0) {
    let closeFailure: string | undefined = "it cannot be locked";
    if (result instanceof Error) closeFailure = explainError(result);
    else if (result === "in part") closeFailure = explainReadFailure();
    if (closeFailure !== undefined) port?.postMessage({ closeFailure } satisfies CloseFailure);
    else warn(`another process reads ${path}: its WAL has the latest records`);
  }
  port?.close();
}

/**
 * Why the file, now closed, cannot be read, if so. SQLite takes a lock that fails for one that another
 * process holds, but only beside a process can the file be opened again.
 */
function explainReadFailure(): string | undefined {
  try {
    using reader = new DatabaseSync(path, { readOnly: true });
    pragma(reader, "user_version");
    return undefined;
  } catch (error) {
    return explainError(error);
  }
}

/** Warns, at most once an hour, if another process has committed since this one last did. */
function followCount({ before, count }: { before: number; count: number }): void {
  const isAlone = before === lastCount;
  lastCount = count;
  if (isAlone || performance.now() - warnedAt < warningIntervalMs) return;
  warnedAt = performance.now();
  warn(
    `another process writes to ${path} too: a second service, or a command such as copy or remove`,
  );
}

/** Replies to "read": waits, in SQLite, until the file can be read. */
function tryRead(): Outcome[] {
  try {
    readCount.get();
    return ["written"];
  } catch (error) {
    return [toFailure(error)];
  }
}

/**
 * Commits rows together. If one meets a damaged page or another program's rule, commits each by
 * itself, so that only those rows fail.
 */
function write(rows: Row[]): Outcome[] {
  const result = transact(() => {
    const outcomes = rows.map(insertOne);
    return { outcomes, counts: outcomes.includes("written") && countCommit(db, readCount) };
  });
  if (!(result instanceof Error)) {
    if (result.counts) followCount(result.counts);
    return result.outcomes;
  }
  const isOfRow = hasCode(result, resultCode.corrupt, resultCode.constraint);
  if (isOfRow && rows.length > 1) return writeOneByOne(rows);
  return rows.map(() => refusalOf(result));
}

/** Commits each row by itself. Once another process keeps the lock, none of the others waits for it. */
function writeOneByOne(rows: Row[]): Outcome[] {
  const outcomes: Outcome[] = [];
  for (const row of rows) {
    const last = outcomes.slice(-1);
    outcomes.push(...(last.some(isLockedOut) ? last : write([row])));
  }
  return outcomes;
}

function refusalOf(error: Error): Failure {
  return { ...toFailure(error), message: explainError(error, path) };
}

function insertOne(row: Row): Outcome {
  if (insert.run(...row).changes === 1) return "written";
  if (hasId.get(row[0] ?? null)) return "duplicate";
  return { message: "a trigger leaves the record out", errcode: resultCode.constraint };
}

/**
 * Runs a function in a transaction.
 *
 * @returns its result, or SQLite's error if surely nothing was written
 * @throws {Error} the transaction may be on disk
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
