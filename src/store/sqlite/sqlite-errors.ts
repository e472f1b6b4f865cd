import { RecordRefusedError, StoreUnavailableError } from "../store.ts";

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
  writeError: 778,
  syncError: 1034,
  folderSyncError: 1290,
  triggerConstraint: 1811,
  indexSizeError: 4874,
};

/** An SQLite error of a read, or of a batch that wrote nothing. An Error would lose its code between threads. */
export interface Fault {
  message: string;
  /** The extended result code, or undefined for any other error. */
  errcode: number | undefined;
}

/** Whether an error, or a {@link Fault}, is an SQLite error with one of these codes, primary or extended. */
export function hasCode(error: unknown, ...codes: number[]): boolean {
  const { errcode = 0 } = Object(error) as Fault;
  return codes.includes(errcode) || codes.includes(errcode & 0xff);
}

/** The failure of a read, or of a batch that surely was not written. */
export function toFault(error: unknown): Fault {
  return { message: explainError(error), errcode: (error as Fault).errcode };
}

/** The error for callers of the store. */
export function toStoreError(failure: Fault): Error {
  // An index or a check refuses just this record; triggers can refuse all.
  const isOfTrigger = hasCode(failure, resultCode.triggerConstraint);
  if (hasCode(failure, resultCode.constraint) && !isOfTrigger) {
    return new RecordRefusedError(failure.message);
  }
  // Our statements are correct, so `error` means a changed table.
  const { error, busy, readOnly, ioError, full, cannotOpen, protocol } = resultCode;
  const refusals = [error, busy, readOnly, ioError, full, cannotOpen, protocol];
  return isOfTrigger || hasCode(failure, ...refusals)
    ? new StoreUnavailableError(failure.message)
    : new Error(failure.message);
}

/** What result codes mean for operators, where SQLite's own words are not enough. */
const meanings: [codes: number[], meaning: string][] = [
  [[resultCode.busy], "another process is using it"],
  [[resultCode.protocol], "its -shm cannot be locked"],
  // SQLite reports a malformed page and an unreadable one by the same code.
  [[resultCode.corrupt], "it is damaged, or its disk cannot be read"],
  [
    [resultCode.cannotOpen, resultCode.readOnly],
    "it, its -wal, its -shm or their folder cannot be opened or written: check rights, read-only mounts, inodes and open files",
  ],
  [
    [resultCode.full, resultCode.writeError, resultCode.indexSizeError],
    "its disk is full, a quota is used up, or the disk fails",
  ],
];

/** Explains a failure to operators: an error of SQLite by its result code, any other by its message. */
export function explainError(error: unknown): string {
  const { message = String(error), errcode, code, errno = 0 } = Object(error);
  if (errcode === undefined) {
    // Node.js has no name for some errors of the system, such as EDQUOT.
    return code === "UNKNOWN" ? `${message} (errno ${-errno})` : message;
  }
  const [, meaning] = meanings.find(([codes]) => hasCode(error, ...codes)) ?? [];
  const cause = `SQLite ${errcode}: ${message}`;
  return meaning ? `${meaning} (${cause})` : cause;
}
