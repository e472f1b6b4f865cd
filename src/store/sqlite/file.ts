import {
  accessSync,
  closeSync,
  constants,
  existsSync,
  lstatSync,
  openSync,
  readFileSync,
  realpathSync,
  statSync,
  truncateSync,
} from "node:fs";
import { dirname, resolve } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as delay } from "node:timers/promises";
import { FilesGoneError, StoreUnavailableError } from "../store.ts";
import { beginCount, isCounted, pragma, refuseForeignWal } from "./commit-count.ts";
import { explainError, hasCode, isAllowed, resultCode } from "./errors.ts";
import { refuseLeftovers, rewriteWal } from "./leftovers.ts";
import { makeFolder, sizeOf, syncPath } from "./paths.ts";
import { createTable, isEmpty } from "./schema.ts";

/** The size of a WAL, in bytes, from which a start can take seconds. */
const largeWalBytes = 128 * 1024 * 1024;

/** How the system says that a path leads nowhere, and no longer to the file that is open. */
const goneCodes = ["ENOENT", "ENOTDIR", "ELOOP", "ESTALE"];

/** The size of the pages of a new file, in bytes. */
const newPageSize = 4_096;

/** Timeout for a lock of another process, in milliseconds. */
export const busyTimeoutMs = 5_000;

/**
 * Makes the file and its folder, if they are missing, for their owner alone; SQLite gives the files
 * beside it the same mode.
 *
 * Nothing but SQLite may open an existing file: POSIX drops all locks of a process on a file when
 * the process closes any descriptor of it, and without the locks of its connections another process
 * believes it is the last user and deletes the WAL with what it holds.
 */
export function makeSqliteFile(path: string): void {
  makeFolder(dirname(resolve(path)));
  refuseLeftovers(path);
  if (!existsSync(path)) closeSync(openSync(path, "a", 0o600));
  else if (!statSync(path).isFile()) throw new Error("it is not a file");
}

/**
 * Opens the file for durable commits, with all that its WAL holds brought into it, unless another
 * process reads it. Commits of an older file are counted from now on.
 *
 * @param onWarning called with what operators should know, before it takes time
 * @param timeoutMs how long other processes that write may hold that up
 * @returns the file, and whether it was empty until now
 * @throws {Error} if the file cannot be used
 */
export async function openSqliteFile(
  path: string,
  onWarning: (message: string) => void,
  timeoutMs = 30_000,
): Promise<{ db: DatabaseSync; isNew: boolean }> {
  // A link can lead to a file that was missing until now.
  refuseLeftovers(path);
  // SQLite opens a file that it may not write, and fails a checkpoint as if its disk were full.
  accessSync(path, constants.R_OK | constants.W_OK);
  const file = realpathSync(path);
  const wal = `${file}-wal`;
  if (sizeOf(wal) > largeWalBytes) {
    const size = Math.round(sizeOf(wal) / 1024 ** 2);
    onWarning(`${wal} has ${size} MiB: to bring it into the file can take seconds`);
  }
  const end = performance.now() + timeoutMs;
  const lockTimeoutMs = Math.min(busyTimeoutMs, timeoutMs);
  await whenFree(() => refuseForeignWal(path, lockTimeoutMs), end);
  const db = new DatabaseSync(path, { timeout: lockTimeoutMs });
  try {
    refuseHardLinks(path);
    let isNew = false;
    await whenFree(() => {
      isNew = makeTable(db) || isNew;
      db.exec("PRAGMA journal_size_limit = 67108864");
      // What is deleted, or moved when a page is split, is overwritten where that costs no write.
      db.exec("PRAGMA secure_delete = FAST");
      if (!isCounted(db)) countOlder(db, file);
      rewriteWal(db, wal);
      checkpointNow(db, file, onWarning);
    }, end);
    // SQLite itself takes the missing end of a page for zeros.
    if (statSync(path).size % pragma(db, "page_size") !== 0) {
      throw new Error("it is damaged: its end is missing");
    }
    syncPath(dirname(file));
    return { db, isNew };
  } catch (error) {
    db.close();
    // SQLite has refused it, so that no connection of this process has locks on it to drop.
    if (!hasCode(error, resultCode.notADatabase) || !isBlankPage(path)) throw error;
    truncateSync(path);
    return openSqliteFile(path, onWarning, timeoutMs);
  }
}

/** Whether a file is what a power cut can leave of the first page of a new one. */
function isBlankPage(path: string): boolean {
  return sizeOf(path) === newPageSize && readFileSync(path).every((byte) => byte === 0);
}

/** Tries again while another process is in the way, such as one that recovers a large WAL. */
async function whenFree(step: () => void, end: number): Promise<void> {
  for (;;) {
    try {
      return step();
    } catch (error) {
      if (!hasCode(error, resultCode.busy)) throw error;
      if (performance.now() > end) throw new Error(explainError(error));
    }
    await delay(100);
  }
}

/**
 * Has the file in WAL mode, with its table, and at no instant a journal beside it: SQLite would play
 * one that a kill leaves back into a backup that is put there. A new file gets its count and the
 * mode first, both on page 1, and the table through the WAL, which then belongs to it.
 *
 * @returns whether this process has made the table
 */
function makeTable(db: DatabaseSync): boolean {
  db.exec("PRAGMA cell_size_check = ON");
  // Refuses a file of another program before anything in it changes.
  const wasEmpty = isEmpty(db);
  // Only page 1 changes, and of an existing one only the first bytes: a part of that write is as good
  // as none or all, and no journal has to be on the disk to undo it.
  const mode = db.prepare("PRAGMA journal_mode").get()?.journal_mode;
  if (mode !== "wal") db.exec("PRAGMA journal_mode = MEMORY");
  if (wasEmpty) commit(db, () => isCounted(db) || beginCount(db));
  // A commit is on the disk when it returns: FULL syncs the WAL at every one.
  db.exec("PRAGMA synchronous = FULL; PRAGMA journal_mode = WAL");
  if (!wasEmpty) return false;
  return commit(db, () => {
    const isStillEmpty = isEmpty(db);
    if (isStillEmpty) createTable(db);
    return isStillEmpty;
  });
}

/**
 * Opens a file that is there for reads alone. Nothing in it changes; SQLite puts the index of the
 * WAL beside it.
 *
 * @throws {Error} if the file cannot be used
 */
export function openSqliteFileToRead(path: string): DatabaseSync {
  const entry = statSync(path, { throwIfNoEntry: false });
  if (entry === undefined) throw new Error("it does not exist");
  if (!entry.isFile()) throw new Error("it is not a file");
  refuseLeftovers(path);
  refuseForeignWal(path, busyTimeoutMs);
  const db = new DatabaseSync(path, { readOnly: true, timeout: busyTimeoutMs });
  try {
    refuseHardLinks(path);
    db.exec("PRAGMA cell_size_check = ON");
    if (isEmpty(db)) throw new Error("it is empty: start the service on it once");
    return db;
  } catch (error) {
    db.close();
    if (!hasCode(error, resultCode.cannotOpen) || isAllowed(path)) throw error;
    const why = "SQLite cannot make its -wal and -shm beside it, without the right to";
    throw new Error(why, { cause: error });
  }
}

/**
 * Identifies the file, its WAL and its index that a process would use if it opened the path now.
 * While a connection is open this changes only if one of them is moved, deleted or replaced:
 * SQLite truncates the WAL, and only the last connection to close deletes both.
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

/**
 * Checks that the path still has the {@link identify identity}.
 *
 * @throws {FilesGoneError} for operators to read, if it has not
 * @throws {StoreUnavailableError} the disk does not say
 */
export function checkIdentity(path: string, identity: string): void {
  let cause: unknown;
  try {
    if (identify(path) === identity) return;
  } catch (error) {
    const { code = "", message } = error as NodeJS.ErrnoException;
    if (!goneCodes.includes(code)) throw new StoreUnavailableError(message, { cause: error });
    cause = error;
  }
  throw new FilesGoneError(`${path} or a file beside it was moved, deleted or replaced`, { cause });
}

function refuseHardLinks(path: string): void {
  if (statSync(path).nlink === 1) return;
  throw new Error("it has other names too (hard links), each with a WAL of its own");
}

/** Begins to count the commits of a file of version 0.3 or older, which can have a WAL. */
function countOlder(db: DatabaseSync, file: string): void {
  // With this snapshot, no other process can begin the WAL anew between the two commits.
  using snapshot = new DatabaseSync(file, { readOnly: true, timeout: busyTimeoutMs });
  snapshot.exec("BEGIN");
  const version = pragma(snapshot, "user_version");
  // The WAL has to show what the first count follows.
  commit(db, () => isCounted(db) || db.exec(`PRAGMA user_version = ${version}`));
  commit(db, () => isCounted(db) || beginCount(db));
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

/**
 * Brings the WAL into the file as far as those who read it, and the disk, allow, without waiting for
 * them: what it holds is durable, and can be read, without that.
 */
function checkpointNow(db: DatabaseSync, file: string, onWarning: (message: string) => void): void {
  db.exec("PRAGMA busy_timeout = 0");
  try {
    const passive = db.prepare("PRAGMA wal_checkpoint(PASSIVE)").get();
    if (passive?.checkpointed !== passive?.log) {
      onWarning(`another process reads ${file}: until it ends, the WAL grows beside it`);
    }
    // Little is left to do for this one, which keeps other writers out.
    db.prepare("PRAGMA wal_checkpoint(TRUNCATE)").get();
  } catch (error) {
    if (!hasCode(error, resultCode.full, resultCode.ioError)) throw error;
    onWarning(`the WAL of ${file} cannot be brought into it, and grows: ${explainError(error)}`);
  } finally {
    db.exec(`PRAGMA busy_timeout = ${busyTimeoutMs}`);
  }
}
