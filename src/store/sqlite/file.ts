import {
  closeSync,
  existsSync,
  lstatSync,
  openSync,
  readFileSync,
  realpathSync,
  statSync,
} from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as delay } from "node:timers/promises";
import { FilesGoneError, StoreUnavailableError } from "../store.ts";
import { checkpoint, rewriteWal } from "./checkpoint.ts";
import { beginCount, isCounted, pragma, refuseForeignWal } from "./commit-count.ts";
import { makeFolder, sizeOf, syncPath } from "./paths.ts";
import { columnsToAdd, completeTable, isEmpty } from "./schema.ts";
import { explainError, hasCode, resultCode } from "./sqlite-errors.ts";

/** Error codes that mean that the path no longer leads to the open file. */
const goneCodes = ["ENOENT", "ENOTDIR", "ELOOP", "ESTALE"];

/** How long to wait for another process's lock, in milliseconds. */
const busyTimeoutMs = 5_000;

/**
 * Creates the file and its folder, if missing, accessible to their owner only; SQLite gives the
 * files beside it the same mode.
 *
 * Only SQLite may open an existing file. When a process closes any descriptor of a file, POSIX
 * drops all its locks on that file. Without them, another process that closes the file believes it
 * is the last one, and deletes the WAL and the records in it.
 */
export function makeSqliteFile(path: string): void {
  makeFolder(dirname(resolve(path)));
  refuseLeftovers(path);
  if (!existsSync(path)) closeSync(openSync(path, "a", 0o600));
  else if (!statSync(path).isFile()) throw new Error("it is not a file");
}

/**
 * Opens the file for durable commits, and checkpoints as much of its WAL as readers and the disk allow.
 *
 * @param onWarning called with a warning for operators, if frames stay in the WAL
 * @param timeoutMs how long to wait for other processes that write
 * @returns the file, and whether it was empty
 * @throws {Error} if the file cannot be used
 */
export async function openSqliteFile(
  path: string,
  onWarning: (message: string) => void,
  timeoutMs = 30_000,
): Promise<{ db: DatabaseSync; isNew: boolean }> {
  // Checked again, since a link can lead to a file that was just created.
  refuseLeftovers(path);
  const file = realpathSync(path);
  const end = performance.now() + timeoutMs;
  const lockTimeoutMs = Math.min(busyTimeoutMs, timeoutMs);
  await retryWhileBusy(() => refuseForeignWal(path, lockTimeoutMs), end);
  const db = new DatabaseSync(path, { timeout: lockTimeoutMs });
  try {
    refuseOtherNames(path);
    let isNew = false;
    await retryWhileBusy(() => {
      isNew = makeTable(db) || isNew;
      // Throws if SQLite could open the file only for reads, as without a free descriptor.
      db.exec("DELETE FROM investors WHERE 0");
    }, end);
    db.exec("PRAGMA journal_size_limit = 67108864");
    // Overwrites deleted and moved content where that costs no extra write.
    db.exec("PRAGMA secure_delete = FAST");
    await retryWhileBusy(() => rewriteWal(db, `${file}-wal`), end);
    const why = checkpoint(db);
    if (why) onWarning(`the WAL of ${file} cannot be checkpointed, and grows: ${why}`);
    // SQLite itself reads the missing end of a page as zeros.
    if (statSync(path).size % pragma(db, "page_size") !== 0) {
      throw new Error("it is damaged: its end is missing");
    }
    syncPath(dirname(file));
    return { db, isNew };
  } catch (error) {
    db.close();
    throw error;
  }
}

/** Retries while another process locks the file, for example to recover a large WAL. */
async function retryWhileBusy(step: () => void | Promise<void>, end: number): Promise<void> {
  for (;;) {
    try {
      return await step();
    } catch (error) {
      if (!hasCode(error, resultCode.busy)) throw error;
      if (performance.now() > end) throw new Error(explainError(error));
    }
    await delay(100);
  }
}

/**
 * Puts the file in WAL mode, counts its commits and completes its table, without ever writing a journal
 * beside it: if a kill left one, SQLite would roll it back into a backup restored later. The count and WAL
 * mode come first, both on page 1; the table goes through the WAL, which thereby matches the file.
 *
 * @returns whether this process has created the table
 */
function makeTable(db: DatabaseSync): boolean {
  db.exec("PRAGMA cell_size_check = ON");
  // Refuses another program's file before changing it.
  const wasComplete = !isEmpty(db) && columnsToAdd(db).length === 0;
  const mode = db.prepare("PRAGMA journal_mode").get()?.journal_mode;
  // Only page 1 changes, and in an existing file only its first bytes. If that write is cut short,
  // either the old or the new state is valid, so no journal on disk is needed to undo it.
  if (mode !== "wal" || !isCounted(db)) db.exec("PRAGMA journal_mode = MEMORY");
  if (!isCounted(db)) commit(db, () => isCounted(db) || beginCount(db));
  // FULL syncs the WAL at every commit, so a commit is on disk when it returns.
  db.exec("PRAGMA synchronous = FULL; PRAGMA journal_mode = WAL");
  return !wasComplete && commit(db, () => completeTable(db));
}

/**
 * Opens an existing file read-only. SQLite still creates the WAL's index beside it.
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
    // Without WAL mode, all that a file has is in it, such as a backup's.
    if (db.prepare("PRAGMA journal_mode").get()?.journal_mode === "wal") refuseOtherNames(path);
    db.exec("PRAGMA cell_size_check = ON");
    if (isEmpty(db)) throw new Error("it is empty: start the service on it once");
    return db;
  } catch (error) {
    db.close();
    throw error;
  }
}

/**
 * Lets SQLite look for damage that reading in the order of the ids does not meet, such as missing
 * records. It is a single call, which nothing can stop: about six seconds for 20 million records.
 *
 * @throws {Error} for operators, if there is damage, or the check failed
 */
export function refuseDamage(db: DatabaseSync): void {
  const found = String(db.prepare("PRAGMA quick_check(1)").get()?.quick_check);
  if (found === "ok") return;
  const finding = found.replace(/^\*\*\*.*\n/, "");
  throw new Error(`it is damaged: ${finding}; "sqlite3 FILE 'PRAGMA quick_check'" shows all`);
}

/**
 * Identifies the file, its WAL and its index as a process opening the path now would find them.
 * While a connection is open, the identity changes only if one of the three is moved, deleted or
 * replaced: SQLite truncates the WAL, and deletes both only when the last connection closes.
 *
 * @throws {Error} one of them does not exist
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
 * Checks that the path still has this {@link identify identity}.
 *
 * @throws {FilesGoneError} for operators, if it has changed
 * @throws {StoreUnavailableError} the disk gives no answer
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

/**
 * Refuses leftovers of another file or a killed program beside a path, before SQLite opens the
 * file. SQLite ignores a WAL beside a link, and deletes the WAL of an empty file, with the records
 * in it. SQLite would roll a journal back into whatever file is there; this service never leaves
 * one.
 */
function refuseLeftovers(path: string): void {
  const beside = join(realpathSync(dirname(path)), basename(path));
  const file = existsSync(path) ? realpathSync(path) : beside;
  for (const name of [beside, file]) {
    const journal = `${name}-journal`;
    if (sizeOf(journal) > 0) {
      throw new Error(
        `the journal ${journal} is there, which SQLite would play back into the file. ` +
          "Nothing has been changed. If you have put a backup in the place of the file, move the journal away; " +
          "if a killed program left it of this very file, this plays it back and deletes it: " +
          `sqlite3 '${file}' 'PRAGMA journal_mode = PERSIST; PRAGMA journal_mode = DELETE'`,
      );
    }
    const wal = `${name}-wal`;
    // Check the WAL first: another process that is creating both writes to the file before the WAL.
    // SQLite treats a file of one byte as empty.
    if (sizeOf(wal) === 0 || (name === file && sizeOf(file) > 1)) continue;
    throw new Error(`its WAL ${wal} is there without it: put the file back beside its WAL`);
  }
}

/** Refuses a file that other paths lead to, each of which would have a WAL of its own. */
function refuseOtherNames(path: string): void {
  if (statSync(path).nlink !== 1) {
    const why = "a restore that was killed leaves one in a folder beside it, until it is repeated";
    throw new Error(`it has other hard links: ${why}`);
  }
  const mounts = "/proc/self/mountinfo";
  if (!existsSync(mounts)) return;
  const file = realpathSync(path);
  for (const line of readFileSync(mounts, "utf8").split("\n")) {
    // Spaces and backslashes are octal (proc_pid_mountinfo(5)).
    const point = line
      .split(" ")[4]
      ?.replaceAll(/\\([0-7]{3})/g, (_, octal) => String.fromCharCode(parseInt(octal, 8)));
    if (point === file)
      throw new Error("it is itself a mount point, without its WAL: mount its folder");
  }
}

/** Runs a function in a transaction. Another process may have done its work before the lock is taken. */
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
