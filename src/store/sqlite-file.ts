import {
  accessSync,
  closeSync,
  constants,
  existsSync,
  lstatSync,
  openSync,
  realpathSync,
  statSync,
} from "node:fs";
import { dirname, resolve } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as delay } from "node:timers/promises";
import { beginCount, isCounted, pragma, refuseForeignLog } from "./commit-count.ts";
import { makeFolder, syncFolder } from "./folder.ts";
import { explainError, resultCode, resultCodeOf, shortageBeside } from "./sqlite-errors.ts";
import { refuseLeftovers, rewriteLog, sizeOf } from "./sqlite-log.ts";

/** "INRE", which marks a file as one of this service (PRAGMA application_id). */
const applicationId = 0x494e5245;

const schema = `
  CREATE TABLE investors (
    id BLOB PRIMARY KEY NOT NULL CHECK (length(id) = 16),
    type INTEGER NOT NULL,
    first_name TEXT NOT NULL,
    middle_name TEXT NOT NULL,
    last_name TEXT NOT NULL,
    address_line1 TEXT NOT NULL,
    address_line2 TEXT NOT NULL,
    city TEXT NOT NULL,
    state TEXT NOT NULL,
    zip_code TEXT NOT NULL,
    country TEXT NOT NULL,
    language TEXT NOT NULL
  ) STRICT, WITHOUT ROWID;
  PRAGMA application_id = ${applicationId}`;

/** The size of a log, in bytes, from which a start can take seconds. */
const largeLogBytes = 128 * 1024 * 1024;

/** Timeout for a lock of another process, in milliseconds. */
const busyTimeoutMs = 5_000;

/**
 * Makes the file and its folder, if they are missing, for their owner alone; SQLite gives the files
 * beside it the same mode.
 *
 * Nothing but SQLite may open an existing file: POSIX drops all locks of a process on a file when
 * the process closes any descriptor of it, and without the locks of its connections another process
 * believes it is the last user and deletes the log with what it holds.
 */
export function makeSqliteFile(path: string): void {
  makeFolder(dirname(resolve(path)));
  refuseLeftovers(path);
  if (!existsSync(path)) closeSync(openSync(path, "a", 0o600));
  else if (!statSync(path).isFile()) throw new Error("it is not a file");
  // Again, since it may be a link to a file that was missing.
  refuseLeftovers(path);
}

/**
 * Opens the file for durable commits, with all that its log holds brought into it, unless another
 * process reads it. Commits of an older file are counted from now on.
 *
 * @param onWarning called with what operators should know, before it takes time
 * @param timeoutMs how long other processes that write may hold that up
 * @throws {Error} if the file cannot be used
 */
export async function openSqliteFile(
  path: string,
  onWarning: (message: string) => void,
  timeoutMs = 30_000,
): Promise<DatabaseSync> {
  // SQLite opens a file that it may not write, and fails a checkpoint as if its disk were full.
  accessSync(path, constants.R_OK | constants.W_OK);
  const log = `${realpathSync(path)}-wal`;
  if (sizeOf(log) > largeLogBytes) {
    const size = Math.round(sizeOf(log) / 1024 ** 2);
    onWarning(`${log} has ${size} MiB: to bring it into the file can take seconds`);
  }
  const end = performance.now() + timeoutMs;
  const lockTimeoutMs = Math.min(busyTimeoutMs, timeoutMs);
  await whenFree(() => refuseForeignLog(path, lockTimeoutMs), end);
  const db = new DatabaseSync(path, { timeout: lockTimeoutMs });
  try {
    refuseHardLinks(path);
    await whenFree(() => prepare(db, realpathSync(path), onWarning), end);
    // SQLite itself takes the missing end of a page for zeros.
    if (statSync(path).size % pragma(db, "page_size") !== 0) {
      throw new Error("it is damaged: its end is missing");
    }
    syncFolder(dirname(realpathSync(path)));
    return db;
  } catch (error) {
    db.close();
    throw error;
  }
}

/** Tries again while another process is in the way, such as one that recovers a large log. */
async function whenFree(step: () => void, end: number): Promise<void> {
  for (;;) {
    try {
      return step();
    } catch (error) {
      if (resultCodeOf(error) !== resultCode.busy) throw error;
      if (performance.now() > end) throw new Error(explainError(error));
    }
    await delay(100);
  }
}

function prepare(db: DatabaseSync, file: string, onWarning: (message: string) => void): void {
  // Refuses a file of another program before anything in it changes.
  if (isEmpty(db)) commit(db, () => isEmpty(db) && create(db));
  // A commit is on the disk when it returns: FULL syncs the log at every one.
  db.exec("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL");
  db.exec("PRAGMA journal_size_limit = 67108864");
  // What is deleted, or moved when a page is split, is overwritten where that costs no write.
  db.exec("PRAGMA secure_delete = FAST");
  if (!isCounted(db)) countOlder(db, file);
  rewriteLog(db, `${file}-wal`);
  bringInLog(db, file, onWarning);
}

/**
 * Opens a file that is there for reads alone. Nothing in it changes; SQLite puts the index of the
 * log beside it.
 *
 * @throws {Error} if the file cannot be used
 */
export function openSqliteFileToRead(path: string): DatabaseSync {
  const entry = statSync(path, { throwIfNoEntry: false });
  if (entry === undefined) throw new Error("it does not exist");
  if (!entry.isFile()) throw new Error("it is not a file");
  refuseLeftovers(path);
  refuseForeignLog(path, busyTimeoutMs);
  const db = new DatabaseSync(path, { readOnly: true, timeout: busyTimeoutMs });
  try {
    refuseHardLinks(path);
    if (isEmpty(db)) throw new Error("it is empty: start the service on it once");
    db.exec("PRAGMA cell_size_check = ON");
    return db;
  } catch (error) {
    db.close();
    if (resultCodeOf(error) !== resultCode.cannotOpen) throw error;
    const shortage = shortageBeside(path);
    const lacks = shortage ? `: ${shortage}` : ", without the right to";
    throw new Error(`SQLite cannot make its -wal and -shm beside it${lacks}`, { cause: error });
  }
}

/**
 * Identifies the file, its log and its index that a process would use if it opened the path now.
 * While a connection is open this changes only if one of them is moved, deleted or replaced:
 * SQLite truncates the log, and only the last connection to close deletes both.
 *
 * @throws {Error} one of them is not there
 */
export function identify(path: string): string {
  const file = realpathSync.native(path);
  const inodes = [file, `${file}-wal`, `${file}-shm`].map((name) => {
    const { dev, ino } = lstatSync(name, { bigint: true });
    return `${dev}:${ino}`;
  });
  return [file, ...inodes].join(" ");
}

/** @throws {Error} for operators to read, if the path is no longer that of the {@link identify identity} */
export function checkIdentity(path: string, identity: string): void {
  let cause: unknown;
  try {
    if (identify(path) === identity) return;
  } catch (error) {
    cause = error;
  }
  throw new Error(`${path} or a file beside it was moved, deleted or replaced`, { cause });
}

function refuseHardLinks(path: string): void {
  if (statSync(path).nlink === 1) return;
  throw new Error("it has other names too (hard links), each with a log of its own");
}

/**
 * Whether nothing is in the file yet.
 *
 * @throws {Error} it is not one that this service can use
 */
function isEmpty(db: DatabaseSync): boolean {
  // In this order, since another process may be making both.
  const hasTable = db.prepare("SELECT 1 FROM sqlite_schema LIMIT 1").get() !== undefined;
  const id = pragma(db, "application_id");
  if (id === applicationId) return false;
  if (id === 0 && !hasTable) return true;
  // One that was made again of what SQLite's .dump wrote, which leaves the mark out.
  const made = db.prepare("SELECT sql FROM sqlite_schema WHERE name = 'investors'").get()?.sql;
  if (id === 0 && made && schema.includes(String(made))) return false;
  throw new Error("it belongs to another program");
}

function create(db: DatabaseSync): void {
  db.exec(schema);
  beginCount(db);
}

/** Begins to count the commits of a file of version 0.3 or older, which can have a log. */
function countOlder(db: DatabaseSync, file: string): void {
  // With this snapshot, no other process can begin the log anew between the two commits.
  const snapshot = new DatabaseSync(file, { readOnly: true, timeout: busyTimeoutMs });
  try {
    snapshot.exec("BEGIN");
    const version = pragma(snapshot, "user_version");
    // The log has to show what the first count follows.
    commit(db, () => isCounted(db) || db.exec(`PRAGMA user_version = ${version}`));
    commit(db, () => isCounted(db) || beginCount(db));
  } finally {
    snapshot.close();
  }
}

/** Commits what a function writes. Another process may have written it before the function is called. */
export function commit<T>(db: DatabaseSync, write: () => T): T {
  db.exec("BEGIN IMMEDIATE");
  try {
    const result = write();
    db.exec("COMMIT");
    return result;
  } finally {
    if (db.isTransaction) db.exec("ROLLBACK");
  }
}

/** Brings the log into the file as far as those who read it allow, without waiting for them. */
function bringInLog(db: DatabaseSync, file: string, onWarning: (message: string) => void): void {
  db.exec("PRAGMA busy_timeout = 0");
  try {
    const passive = db.prepare("PRAGMA wal_checkpoint(PASSIVE)").get();
    if (passive?.checkpointed !== passive?.log) {
      onWarning(`another process reads ${file}: until it ends, the log grows beside it`);
    }
    // Little is left to do for this one, which keeps other writers out.
    db.prepare("PRAGMA wal_checkpoint(TRUNCATE)").get();
  } finally {
    db.exec(`PRAGMA busy_timeout = ${busyTimeoutMs}`);
  }
}
