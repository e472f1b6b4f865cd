import {
  closeSync,
  existsSync,
  fsyncSync,
  lstatSync,
  openSync,
  readlinkSync,
  readSync,
  realpathSync,
  statSync,
  writeSync,
} from "node:fs";
import { dirname, resolve } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as delay } from "node:timers/promises";
import { makeFolder, syncFolder } from "./folder.ts";
import { resultCode, resultCodeOf } from "./sqlite-errors.ts";
import { refuseForeignLog } from "./sqlite-log.ts";

/** "INRE", which marks a file as one of this service (PRAGMA application_id). */
const applicationId = 0x494e5245;

/** The steps from each version of a file to the next (PRAGMA user_version). */
const migrations = [
  `CREATE TABLE investors (
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
  ) STRICT, WITHOUT ROWID`,
];

/** Timeout for a lock of another process, in milliseconds. */
export const busyTimeoutMs = 5_000;

/**
 * Makes the file and its folder, if they are missing, for their owner alone; SQLite gives the files
 * beside it the same mode.
 *
 * Nothing but SQLite may open an existing file: POSIX drops all locks of a process on a file when
 * the process closes any descriptor of it, and without the locks of its connections another process
 * believes it is the last user and deletes the log with what it holds.
 */
export function makeSqliteFile(path: string): void {
  const folder = dirname(resolve(path));
  makeFolder(folder);
  refuseLogAlone(path);
  try {
    closeSync(openSync(path, "wx", 0o600));
  } catch (error) {
    if (!(error instanceof Error && "code" in error && error.code === "EEXIST")) throw error;
    const entry = statSync(path, { throwIfNoEntry: false });
    if (entry?.isFile() === false) throw new Error("it is not a file");
    // A symbolic link to nothing: its target is the file.
    if (entry === undefined) makeSqliteFile(resolve(realpathSync(folder), readlinkSync(path)));
  }
}

/**
 * Opens the file for durable commits. It waits at most `lockTimeoutMs` for each lock of other
 * processes, and at most `openTimeoutMs` to bring in the log. An older file is migrated.
 *
 * @throws {Error} if the file cannot be used
 */
export async function openSqliteFile(
  path: string,
  onWarning: (message: string) => void,
  lockTimeoutMs = busyTimeoutMs,
  openTimeoutMs = 30_000,
): Promise<DatabaseSync> {
  refuseForeignLog(path, lockTimeoutMs, onWarning);
  const db = new DatabaseSync(path, { timeout: lockTimeoutMs });
  try {
    refuseHardLinks(path);
    // Refuses a file of another program before anything in it changes.
    versionOf(db);
    // A commit is on the disk when it returns: FULL syncs the log at every one.
    await useLog(db, lockTimeoutMs);
    db.exec("PRAGMA synchronous = FULL; PRAGMA journal_size_limit = 67108864");
    migrate(db);
    await settle(db, path, openTimeoutMs);
    return db;
  } catch (error) {
    db.close();
    throw error;
  }
}

/**
 * Opens a file that is there for reads alone. Nothing in it changes; SQLite puts the index of the
 * log beside it.
 *
 * @throws {Error} if the file cannot be used
 */
export function openSqliteFileToRead(path: string): DatabaseSync {
  const entry = statSync(path, { throwIfNoEntry: false });
  if (entry === undefined) throw new Error("it is not there");
  if (!entry.isFile()) throw new Error("it is not a file");
  refuseLogAlone(path);
  const db = new DatabaseSync(path, { readOnly: true, timeout: busyTimeoutMs });
  try {
    refuseHardLinks(path);
    if (versionOf(db) !== migrations.length) {
      throw new Error("it is empty, or of an older version: start the service on it once");
    }
    db.exec("PRAGMA cell_size_check = ON");
    return db;
  } catch (error) {
    db.close();
    if (resultCodeOf(error) !== resultCode.cannotOpen) throw error;
    throw new Error("SQLite needs the right to make its -wal and -shm beside it", { cause: error });
  }
}

/** Gives a new file a log. For the lock that this takes, SQLite itself does not wait. */
async function useLog(db: DatabaseSync, timeoutMs: number): Promise<void> {
  const end = performance.now() + timeoutMs;
  for (;;) {
    try {
      db.exec("PRAGMA journal_mode = WAL");
      return;
    } catch (error) {
      if (resultCodeOf(error) !== resultCode.busy || performance.now() > end) throw error;
    }
    await delay(10);
  }
}

/**
 * Refuses a log whose file is not with it: SQLite ignores one that is beside a link, and deletes one,
 * with the records in it, if its file is empty.
 */
function refuseLogAlone(path: string): void {
  const left = `${path}-wal`;
  // The log of a link is beside the file that it leads to.
  if (lstatSync(path, { throwIfNoEntry: false })?.isSymbolicLink() && sizeOf(left) > 0) {
    throw new Error(
      `it is a link, and the log ${left} was left beside it: if nothing has written to the file since it was moved, move the log to it, or else away`,
    );
  }
  const log = `${existsSync(path) ? realpathSync(path) : path}-wal`;
  // The log first, since another process may be making both: in the file it writes first.
  if (sizeOf(log) === 0 || sizeOf(path) > 0) return;
  throw new Error(`it is missing or empty, but its log ${log} is not: put the file back`);
}

function sizeOf(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.size ?? 0;
}

function refuseHardLinks(path: string): void {
  if (statSync(path).nlink === 1) return;
  throw new Error("it has other names too (hard links), each with a log of its own");
}

/**
 * Brings all that the log holds onto the disk, and into the file. The log may have been written
 * by a process whose sync failed or never returned. What the disk lost of it is in the page cache
 * still, which takes it for written: no later sync of the log would bring it to the disk, and
 * commits after it would be lost with it. So the log is written again first; without that, a
 * power cut in the checkpoint would leave a file half changed, and no log to repair it from.
 *
 * @throws {Error} other processes hold it up
 */
async function settle(db: DatabaseSync, path: string, timeoutMs: number): Promise<void> {
  const checkpoint = db.prepare("PRAGMA wal_checkpoint(TRUNCATE)");
  const end = performance.now() + timeoutMs;
  let wasShort = false;
  for (;;) {
    // If others hold it up, only the row says so; nothing is thrown.
    if (rewriteLog(db, path) && checkpoint.get()?.busy === 0) {
      // SQLite itself takes the missing end of a page for zeros.
      const size = pragma(db, "page_count") * pragma(db, "page_size");
      if (statSync(path).size >= size) break;
      // Once, another process can have committed after the checkpoint.
      if (wasShort) throw new Error("it is damaged: its end is missing");
      wasShort = true;
    }
    if (performance.now() > end) {
      throw new Error(`another process kept it in use for ${timeoutMs / 1_000} seconds`);
    }
    await delay(100);
  }
  syncFolder(dirname(realpathSync(path)));
}

/**
 * Writes the bytes of the log where they are, and syncs them. SQLite has no locks on the log that
 * closing it could drop; the write lock keeps other processes from changing it meanwhile.
 *
 * @returns false if another process holds that lock
 */
function rewriteLog(db: DatabaseSync, path: string): boolean {
  try {
    db.exec("BEGIN IMMEDIATE");
  } catch (error) {
    if (resultCodeOf(error) === resultCode.busy) return false;
    throw error;
  }
  const log = openSync(`${realpathSync(path)}-wal`, "r+");
  try {
    const chunk = Buffer.alloc(1024 * 1024);
    let position = 0;
    for (;;) {
      const size = readSync(log, chunk, 0, chunk.length, position);
      if (size === 0) break;
      for (let done = 0; done < size; ) {
        done += writeSync(log, chunk, done, size - done, position + done);
      }
      position += size;
    }
    fsyncSync(log);
    return true;
  } finally {
    closeSync(log);
    db.exec("ROLLBACK");
  }
}

function pragma(db: DatabaseSync, name: string): number {
  return Number(db.prepare(`PRAGMA ${name}`).get()?.[name]);
}

/**
 * The version of the file, 0 of an empty one.
 *
 * @throws {Error} it is not one that this service can use
 */
function versionOf(db: DatabaseSync): number {
  // In this order, since another process may be making both.
  const isEmpty = db.prepare("SELECT 1 FROM sqlite_schema LIMIT 1").get() === undefined;
  const id = pragma(db, "application_id");
  if (id === 0 && isEmpty) return 0;
  if (id !== applicationId) throw new Error("it belongs to another program");
  const version = pragma(db, "user_version");
  if (version <= migrations.length) return version;
  throw new Error("it was written by a newer version of this service");
}

function migrate(db: DatabaseSync): void {
  if (versionOf(db) === migrations.length) return;
  db.exec("BEGIN IMMEDIATE");
  try {
    // Read again: another process may have migrated it.
    for (const step of migrations.slice(versionOf(db))) db.exec(step);
    db.exec(`PRAGMA application_id = ${applicationId}; PRAGMA user_version = ${migrations.length}`);
    db.exec("COMMIT");
  } finally {
    if (db.isTransaction) db.exec("ROLLBACK");
  }
}
