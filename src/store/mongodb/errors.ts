import {
  type Document,
  MongoError,
  MongoNetworkError,
  MongoServerError,
  MongoServerSelectionError,
  MongoWriteConcernError,
  type ServerDescription,
} from "mongodb";
import { DuplicateIdError, OutcomeUnknownError, StoreUnavailableError } from "../store.ts";

/** Codes with which a server rejects a record before writing it, and all others until somebody intervenes. */
const refusalCode = {
  unauthorized: 13,
  documentValidationFailure: 121,
  viewNotWritable: 166,
  userWritesBlocked: 371,
  overQuota: 8_000,
  databaseDifferCase: 13_297,
  diskFull: 14_031,
};
const refusals: unknown[] = Object.values(refusalCode);

/** Codes of MongoDB's errors. */
export const code = {
  ...refusalCode,
  authenticationFailed: 18,
  notWritablePrimary: 10_107,
  duplicateKey: 11_000,
  notPrimaryNoSecondaryOk: 13_435,
};

/** Whether a server rejected a write for a reason that lasts. */
export function isRefusal(error: unknown): boolean {
  return error instanceof MongoServerError && refusals.includes(error.code);
}

/** Whether a command that failed as a whole surely wrote nothing; if false, it may have. */
function isSurelyNotWritten(error: unknown): boolean {
  // Its code says what ended the wait for a majority, which comes after the write.
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

/** Whether a server rejected the user of a new connection, so that no command was sent. */
export function isUserRefused(error: unknown): boolean {
  if (error instanceof MongoServerError) return error.code === code.authenticationFailed;
  // Commands waiting for a connection that another one was opening get this error.
  const isOfPool = error instanceof Error && error.name === "MongoPoolClearedError";
  return isOfPool && isUserRefused(error.cause);
}

/** Converts the failure of one record of an insert. */
export function toInsertError(failure: Document): Error {
  if (refusals.includes(failure.code)) return unavailable(new MongoServerError(failure));
  // A deposed primary, or a shard that did not reply, can cause any other code.
  if (failure.code !== code.duplicateKey) return outcomeUnknown(new MongoServerError(failure));
  // The server's message contains the key, and so part of the record.
  return "_id" in (failure.keyPattern ?? { _id: 1 })
    ? new DuplicateIdError()
    : new Error("a unique index other than that of _id rejects it");
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

/** Says in one line, for operators, which setting or state is wrong, without data of any record. */
export function explain(error: Error): string {
  if (error instanceof MongoServerSelectionError) {
    const servers: ServerDescription[] = [...(error.reason?.servers.values() ?? [])];
    // The driver drops members of another set.
    if (servers.length === 0)
      return "no host of the URL is in the replica set: check hosts and replicaSet";
    const isReached = servers.some((server) => server.error === null);
    const states = servers.map((server) => explainServer(server, error.reason?.setName));
    return `${isReached ? "no primary" : "cannot reach MongoDB"}: ${states.join("; ")}`;
  }
  switch (error instanceof MongoServerError && error.code) {
    case code.unauthorized:
      // The server's message contains the command, and so records.
      return "MongoDB does not authorize this: check the user in the URL and its roles";
    case code.userWritesBlocked:
      return "MongoDB blocks writes";
    case code.documentValidationFailure:
      return "a validator of the collection refuses the record";
    case code.authenticationFailed:
      return "MongoDB refuses the user: check user, password and authSource in the URL";
    case code.notWritablePrimary:
    case code.notPrimaryNoSecondaryOk:
      return "the server is not the primary: an election goes on, or the URL lacks its replicaSet or has directConnection";
  }
  // Some servers use the same words for several codes.
  if (error instanceof MongoServerError)
    return `${error.message} (${error.codeName ?? error.code})`;
  return explainConnection(error);
}

function explainServer({ address, type, error }: ServerDescription, setName?: string | null) {
  if (error) return `${address}: ${explainConnection(error)}`;
  const states: Record<string, string> = {
    RSSecondary: "is a secondary",
    RSGhost: "is in no replica set, or in one that is not initiated",
    Unknown: setName ? "is not in the set that replicaSet names" : "does not reply",
  };
  return `${address} ${states[type] ?? `is ${type}`}`;
}

function explainConnection(error: Error & { code?: unknown; syscall?: string }): string {
  const { cause, message, syscall = "" } = error;
  // The driver wraps the socket's error, and repeats its message.
  if (cause instanceof Error && message.includes(cause.message)) return explainConnection(cause);
  const text = message.replaceAll(/\s+/g, " ");
  if (syscall.startsWith("query")) return `the DNS look-up of mongodb+srv fails: ${text}`;
  if (syscall === "getaddrinfo") return `the DNS look-up of this host fails: ${text}`;
  const name = String(error.code);
  if (name === "ECONNREFUSED") return "it refuses connections (ECONNREFUSED)";
  if (/SELF_SIGNED|SIGNATURE|GET_ISSUER_CERT/.test(name))
    return `its certificate is not trusted (${name}): check tlsCAFile`;
  if (/^ERR_OSSL_|TOO_(SMALL|WEAK)$/.test(name)) return `${text}: check tlsCertificateKeyFile`;
  if (name.startsWith("ERR_SSL_") || text.includes("before secure TLS"))
    return "it does not speak TLS: check tls in the URL";
  if (/^connection .* closed$/.test(text)) return "it closes connections: check its tls options";
  return text;
}
