import { closeSync, constants, openSync } from "node:fs";
import { dirname } from "node:path";
import { StoreUnavailableError } from "../store.ts";

/** Result codes of SQLite, primary and extended (https://www.sqlite.org/rescode.html). */
export const resultCode = {
  busy: 5,
  readOnly: 8,
  ioError: 10,
  corrupt: 11,
  full: 13,
  cannotOpen: 14,
  notADatabase: 26,
  writeError: 778,
  syncError: 1034,
  folderSyncError: 1290,
  indexSizeError: 4874,
} as const;

/** The extended result code of an error of SQLite, or undefined for any other error. */
export function extendedCodeOf(error: unknown): number | undefined {
  return error instanceof Error && "errcode" in error ? Number(error.errcode) : undefined;
}

/** The primary result code of an error of SQLite, or undefined for any other error. */
export function resultCodeOf(error: unknown): number | undefined {
  const code = extendedCodeOf(error);
  return code === undefined ? undefined : code & 0xff;
}

/** An error of SQLite that has written nothing; it crosses threads, as the error's code would not. */
export interface Failure {
  message: string;
  code: number | undefined;
}

/** The failure of a batch that surely was not written. */
export function toFailure(error: unknown): Failure {
  return { message: (error as Error).message, code: resultCodeOf(error) };
}

/** The error for callers of the store. */
export function toStoreError({ message, code }: Failure): Error {
  const transient: unknown[] = [resultCode.busy, resultCode.full, resultCode.ioError];
  return transient.includes(code) ? new StoreUnavailableError(message) : new Error(message);
}

/** What a file cannot be made for, although it may be. */
const shortages: Record<string, string> = {
  ENOSPC: "its disk is full, or has no inodes left",
  EDQUOT: "a quota of bytes or of files is used up",
  EMFILE: "this process has too many open files",
  ENFILE: "the system has too many open files",
};

/** `O_TMPFILE` of Linux, which Node.js does not name: it makes a file that never gets a name. */
const unnamed = constants.O_DIRECTORY | 0o20_000_000;

/** What keeps files from being made beside one, of which SQLite says only that it cannot open them. */
export function shortageBeside(path: string): string | undefined {
  try {
    closeSync(openSync(dirname(path), constants.O_RDWR | unnamed, 0o600));
  } catch (error) {
    const { code = "" } = error as NodeJS.ErrnoException;
    return shortages[code] && `${shortages[code]} (${code})`;
  }
  return undefined;
}

/**
 * Explains a failure to operators: that of SQLite by its result code, any other by its message.
 *
 * @param path the file, if it is one of SQLite
 */
export function explainError(error: unknown, path?: string): string {
  const { busy, cannotOpen, readOnly, corrupt, notADatabase, full, writeError, indexSizeError } =
    resultCode;
  const code = resultCodeOf(error);
  if (code === busy) return "another process keeps it in use";
  if (code === corrupt || code === notADatabase) return "it is damaged, or not an SQLite file";
  const message = error instanceof Error ? error.message : String(error);
  const shortage = code === cannotOpen && path ? shortageBeside(path) : undefined;
  if (shortage) return `SQLite cannot make its -wal and -shm beside it: ${shortage}`;
  const [, name = ""] = /^(E[A-Z]+):/.exec(message) ?? [];
  if (shortages[name]) return `${shortages[name]} (${message})`;
  if (code === cannotOpen || code === readOnly || /^(EACCES|EPERM|EROFS):/.test(message)) {
    const files = "it, its -wal and -shm, and its folder";
    return `it cannot be opened: this user must be able to read and write ${files} (${message})`;
  }
  const noRoom: unknown[] = [full, writeError, indexSizeError];
  return noRoom.includes(extendedCodeOf(error))
    ? `its disk is full, a quota is used up, or the disk fails (${message})`
    : message;
}
