import { accessSync, closeSync, constants, existsSync, openSync } from "node:fs";
import { constants as system } from "node:os";
import { dirname } from "node:path";
import { StoreUnavailableError } from "../store.ts";

/** Result codes of SQLite, primary and extended (https://www.sqlite.org/rescode.html). */
export const resultCode = {
  error: 1,
  busy: 5,
  readOnly: 8,
  ioError: 10,
  corrupt: 11,
  full: 13,
  cannotOpen: 14,
  protocol: 15,
  constraint: 19,
  notADatabase: 26,
  writeError: 778,
  syncError: 1034,
  folderSyncError: 1290,
  indexSizeError: 4874,
};

/** An SQLite error of a read, or of a batch that wrote nothing. An Error would lose its code between threads. */
export interface Failure {
  message: string;
  /** The extended result code, or undefined for any other error. */
  errcode: number | undefined;
}

/** Whether an error, or a {@link Failure}, is an SQLite error with one of these codes, primary or extended. */
export function hasCode(error: unknown, ...codes: number[]): boolean {
  const { errcode = 0 } = Object(error) as Failure;
  return codes.includes(errcode) || codes.includes(errcode & 0xff);
}

/** The failure of a read, or of a batch that surely was not written. */
export function toFailure(error: unknown): Failure {
  const { message, errcode } = error as Failure;
  const { ioError, corrupt, full } = resultCode;
  const isOfDisk = hasCode(error, ioError, corrupt, full);
  return { message: isOfDisk ? explainError(error) : message, errcode };
}

/** Whether a lock could not be taken: another process holds it, or the file system does not grant it. */
export function isLockedOut(error: unknown): boolean {
  return hasCode(error, resultCode.busy, resultCode.protocol);
}

/** The error for callers of the store. */
export function toStoreError(failure: Failure): Error {
  // Our statements are correct, so `error` means a changed table, and `constraint` another program's rule.
  const { error, readOnly, ioError, full, cannotOpen, constraint } = resultCode;
  const refusals = [error, readOnly, ioError, full, cannotOpen, constraint];
  return isLockedOut(failure) || hasCode(failure, ...refusals)
    ? new StoreUnavailableError(failure.message)
    : new Error(failure.message);
}

/** Why creating a file fails although permitted, by error code. */
const shortages: Record<string, string> = {
  ENOSPC: "its disk is full, or has no inodes left",
  EDQUOT: "a quota of bytes or of files is used up",
  EMFILE: "this process has too many open files",
  ENFILE: "the system has too many open files",
};

/** Linux's `O_TMPFILE`, which Node.js lacks: opens a file that never gets a name. */
const unnamed = constants.O_DIRECTORY | 0o20_000_000;

/** Why SQLite cannot create files beside the database; its own error says only that it cannot open them. */
function shortageBeside(path: string): string | undefined {
  try {
    closeSync(openSync(dirname(path), constants.O_RDWR | unnamed, 0o600));
  } catch (error) {
    const name = systemNameOf(error) ?? "";
    return shortages[name] && `${shortages[name]} (${name})`;
  }
  return undefined;
}

/** The name of a system error, including those unknown to Node.js, such as EDQUOT. */
function systemNameOf(error: unknown): string | undefined {
  const { errno = 0 } = Object(error) as NodeJS.ErrnoException;
  return Object.entries(system.errno).find(([, number]) => number === -errno)?.[0];
}

/** Whether this user may use a file and create others beside it. */
export function isAllowed(path: string): boolean {
  try {
    accessSync(dirname(path), constants.R_OK | constants.W_OK | constants.X_OK);
    for (const name of [path, `${path}-wal`, `${path}-shm`]) {
      if (existsSync(name)) accessSync(name, constants.R_OK | constants.W_OK);
    }
    return true;
  } catch {
    return false;
  }
}

/**
 * Explains a failure to operators: an error of SQLite by its result code, any other by its message.
 *
 * @param path the SQLite file that the error concerns, if any
 */
export function explainError(error: unknown, path?: string): string {
  const { cannotOpen, readOnly, ioError, corrupt, notADatabase, full } = resultCode;
  const name = systemNameOf(error) ?? "";
  const message = (error instanceof Error ? error.message : String(error)).replace(
    /^UNKNOWN: unknown error/,
    name,
  );
  if (isLockedOut(error)) return "another process is using it";
  if (hasCode(error, notADatabase)) return "it is damaged, or not an SQLite file";
  // SQLite reports a malformed page and an unreadable one by the same code.
  if (hasCode(error, corrupt)) return `it is damaged, or its disk cannot be read (${message})`;
  const shortage = path && hasCode(error, cannotOpen) ? shortageBeside(path) : undefined;
  if (shortage) return `SQLite cannot make its -wal and -shm beside it: ${shortage}`;
  if (shortages[name]) return `${shortages[name]} (${message})`;
  const mayUse = path === undefined || isAllowed(path);
  const isNotOpen = hasCode(error, cannotOpen, readOnly);
  if (isNotOpen && path && mayUse) {
    return `it or a file beside it cannot be opened, though permitted: its disk fails, or too many files are open (${message})`;
  }
  const isRefused = isNotOpen || (hasCode(error, ioError) && !mayUse);
  if (isRefused || ["EACCES", "EPERM", "EROFS"].includes(name)) {
    const files = "it, its -wal and -shm, and its folder";
    return `it cannot be opened or written: this user must be able to read and write ${files} (${message})`;
  }
  if (hasCode(error, full, ioError)) {
    const why = hasCode(error, full, resultCode.writeError, resultCode.indexSizeError)
      ? "its disk is full, a quota is used up, or the disk fails"
      : "its disk fails";
    return `${why} (${message})`;
  }
  return message;
}
