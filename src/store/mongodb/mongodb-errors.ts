import {
  type Document,
  MongoError,
  MongoNetworkError,
  MongoServerError,
  MongoServerSelectionError,
  MongoWriteConcernError,
} from "mongodb";
import {
  DuplicateIdError,
  OutcomeUnknownError,
  RecordRefusedError,
  StoreUnavailableError,
} from "../store.ts";

/** Codes of MongoDB's errors. */
export const code = {
  badValue: 2,
  unauthorized: 13,
  notWritablePrimary: 10_107,
  duplicateKey: 11_000,
};

/**
 * Codes with which a server rejects a record before writing it, and all others until somebody intervenes: for rights, a
 * rule for documents, a view, blocked writes, a quota, a database whose name differs in case alone, a full disk.
 */
const refusals: unknown[] = [code.unauthorized, 121, 166, 371, 8_000, 13_297, 14_031];

/**
 * Codes of errors that a retry can settle: of members that step down or shut down, timeouts, interruptions,
 * conflicts, databases that are being dropped, and of shards that a router could not reach, or whose reply it did not get
 * (https://github.com/mongodb/specifications/blob/master/source/retryable-writes/retryable-writes.md).
 */
const passing: unknown[] = [
  6, 7, 24, 46, 50, 63, 82, 89, 91, 112, 117, 133, 150, 189, 202, 209, 215, 246, 262, 365, 9_001,
  10_107, 11_600, 11_601, 11_602, 13_388, 13_435, 13_436,
];

/** Whether a server rejected a write for a reason that lasts. */
export function isRefusal(error: unknown): boolean {
  // The code of a write concern error says what ended the wait for a majority, which comes after the write.
  const isOfWrite = error instanceof MongoServerError && !(error instanceof MongoWriteConcernError);
  return isOfWrite && refusals.includes(error.code);
}

/** Whether a command that failed as a whole surely wrote nothing; if false, it may have. */
function isSurelyNotWritten(error: unknown): boolean {
  if (error instanceof MongoWriteConcernError) return false;
  return (
    // The driver could not open or authenticate a connection.
    (error instanceof MongoNetworkError && error.hasErrorLabel("SystemOverloadedError")) ||
    (error instanceof MongoError && error.hasErrorLabel("HandshakeError")) ||
    error instanceof MongoServerSelectionError ||
    (error instanceof Error && error.name === "MongoWaitQueueTimeoutError") ||
    isRefusal(error) ||
    (error instanceof MongoServerError && error.code === code.notWritablePrimary)
  );
}

/** Converts the failure of one record of an insert. The server's message can contain the record. */
export function toInsertError(failure: Document): Error {
  const { code: number, keyPattern = { _id: 1 } } = failure;
  const error = new MongoServerError(failure);
  if (refusals.includes(number)) return unavailable(error);
  if (passing.includes(number)) return outcomeUnknown(error);
  if (number !== code.duplicateKey) {
    const where = "see the collection's indexes";
    return new RecordRefusedError(`MongoDB rejects it with the error ${number}: ${where}`);
  }
  if ("_id" in keyPattern) return new DuplicateIdError();
  return new RecordRefusedError(
    `the unique index of ${Object.keys(keyPattern).join(", ")} rejects it`,
  );
}

/** The error for a write that failed as a whole. */
export function toWriteError(error: Error): Error {
  return isSurelyNotWritten(error) ? unavailable(error) : outcomeUnknown(error);
}

/** The error for a write with an unknown outcome. */
function outcomeUnknown(error: Error): OutcomeUnknownError {
  if (!(error instanceof MongoServerError)) return new OutcomeUnknownError(explain(error));
  // The server's message can contain the record.
  const { code, codeName = "" } = error;
  return new OutcomeUnknownError(`MongoDB replied with the error ${code} ${codeName}`.trim());
}

/** The error for a call that surely changed nothing. */
export function unavailable(error: Error): StoreUnavailableError {
  return new StoreUnavailableError(explain(error));
}

/** Says in one line, for operators, what failed, without data of any record. */
function explain(error: Error): string {
  const text = error.message.replaceAll(/\s+/g, " ");
  if (error instanceof MongoServerSelectionError) {
    const { type, setName, servers = new Map() } = error.reason ?? {};
    const states = Array.from(servers.values(), (each) => {
      const hint = each.type === "RSGhost" ? ", which a new set is until rs.initiate()" : "";
      return `${each.address}: ${each.error?.message ?? each.type}${hint}`;
    });
    const topology = [type, setName].filter(Boolean).join(" ");
    return `${text}; ${topology} of ${states.join(", ") || "no host of the URL"}`;
  }
  if (!(error instanceof MongoServerError)) return text;
  // The server's message contains the command, and so records.
  if (error.code === code.unauthorized)
    return "MongoDB does not authorize this: check the user in the URL and its roles";
  // Some servers use the same words for several codes.
  return `${text} (${error.codeName ?? error.code})`;
}
