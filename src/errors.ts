import type { MessageInitShape } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import {
  BadRequestSchema,
  ErrorInfoSchema,
  RetryInfoSchema,
} from "../gen/google/rpc/error_details_pb.js";
import type { Violation } from "./investor/investor.ts";

/** The domain of all reasons (google.rpc.ErrorInfo.domain). */
export const errorDomain = "investor-records";

/**
 * Every reason for which a call is rejected or fails, with its code on every protocol
 * (https://grpc.io/docs/guides/status-codes).
 */
export const codes = {
  INVALID_FIELDS: Code.InvalidArgument,
  MALFORMED_REQUEST: Code.InvalidArgument,
  INVESTOR_NOT_FOUND: Code.NotFound,
  REQUEST_ID_REUSED: Code.AlreadyExists,
  MESSAGE_TOO_LARGE: Code.ResourceExhausted,
  CREDENTIALS_MISSING: Code.Unauthenticated,
  CREDENTIALS_INVALID: Code.Unauthenticated,
  SCOPE_MISSING: Code.PermissionDenied,
  ISSUER_UNAVAILABLE: Code.Unavailable,
  OVERLOADED: Code.Unavailable,
  STORE_UNAVAILABLE: Code.Unavailable,
  OUTCOME_UNKNOWN: Code.Unavailable,
  DEADLINE_EXCEEDED: Code.DeadlineExceeded,
  CANCELLED: Code.Canceled,
  INTERNAL: Code.Internal,
} as const;

/** A stable name for the cause of an error, unique within the {@link errorDomain}. */
export type Reason = keyof typeof codes;

/** Some fields break rules; lists them all, so that a caller can fix them in one go. */
export function invalidFields(violations: Violation[]): ConnectError {
  const fieldViolations = violations.map(({ field, description }) => ({
    // A JSON member's name can be any text.
    field: field.toWellFormed(),
    description,
  }));
  const [first, ...others] = fieldViolations;
  const also =
    others.length > 0 ? `; also invalid: ${others.map(({ field }) => field).join(", ")}` : "";
  // In the message too, since many tools and logs show no details.
  const message = `${first?.field} ${first?.description}${also}`;
  const error = failure("INVALID_FIELDS", message);
  error.details.push({ desc: BadRequestSchema, value: { fieldViolations } });
  return error;
}

/** The request is not a message of the type that the method takes. */
export function malformedRequest(
  cause?: unknown,
  description = "the request is not a valid message of this method",
): ConnectError {
  // The decoder's message is useful for its names, but its values would be personal data.
  const safe = /^cannot decode \w+ [\w.]+ from JSON(: key "[^"]{0,100}" is unknown)?/;
  const [message = description] = (cause instanceof Error && safe.exec(cause.message)) || [];
  return failure("MALFORMED_REQUEST", message.toWellFormed(), { cause });
}

export function messageTooLarge(maxBytes: number): ConnectError {
  return failure("MESSAGE_TOO_LARGE", `the request must be at most ${maxBytes} bytes long`);
}

/** No record has this id. `id` is undefined for text that is not a UUID: it can be of any length. */
export function investorNotFound(id: string | undefined): ConnectError {
  return failure("INVESTOR_NOT_FOUND", "no investor has this id", {
    metadata: id === undefined ? {} : { id },
  });
}

export function requestIdReused(): ConnectError {
  return failure("REQUEST_ID_REUSED", "the request id was used before, for other content");
}

export function credentialsMissing(needed: string): ConnectError {
  return challenge(failure("CREDENTIALS_MISSING", `the call needs ${needed}`));
}

/** The credentials are invalid; the cause is only logged. */
export function credentialsInvalid(needed: string, cause: unknown): ConnectError {
  const message = `the credentials are not valid here; the call needs ${needed}`;
  const error = failure("CREDENTIALS_INVALID", message, { cause });
  return challenge(error, 'error="invalid_token"');
}

export function scopeMissing(scope: string): ConnectError {
  const error = failure("SCOPE_MISSING", `the call needs the scope ${scope}`);
  return challenge(error, `error="insufficient_scope", scope="${scope}"`);
}

/** The issuer's keys, needed to verify a token, cannot be fetched. */
export function issuerUnavailable(cause: unknown): ConnectError {
  const message = "the token cannot be checked now; repeat the call later";
  return failure("ISSUER_UNAVAILABLE", message, { cause });
}

/**
 * A limit is reached; the call was not processed.
 *
 * @param limit what there is too much of, in the plural, for callers, the log and the metrics
 */
export function overloaded(limit: string): ConnectError {
  const message = `too many ${limit} at once; repeat the call later`;
  return failure("OVERLOADED", message, { metadata: { limit } });
}

/** The store cannot be reached or cannot write; the call changed nothing. */
export function storeUnavailable(cause: unknown): ConnectError {
  const message = "the store is not available and nothing was written; repeat the call later";
  return failure("STORE_UNAVAILABLE", message, { cause });
}

/** A create with an unknown outcome that is safe to retry, since its request id identifies replays. */
export function outcomeUnknown(cause: unknown): ConnectError {
  const message = "the record may or may not be stored; repeat the call with the same request id";
  return failure("OUTCOME_UNKNOWN", message, { cause });
}

/**
 * A create with an unknown outcome that must not be retried: a retry would store a second record.
 * Its code is UNKNOWN, without a delay, since clients retry UNAVAILABLE by themselves.
 */
export function outcomeUnknownFor(id: string, cause: unknown): ConnectError {
  const message = "the record may or may not be stored; look its id up before you repeat the call";
  return failure("OUTCOME_UNKNOWN", message, { cause, metadata: { id }, code: Code.Unknown });
}

/**
 * A call was aborted: its deadline passed, or its caller left.
 *
 * @param reason the signal's reason
 * @param effect what the call may have done
 */
export function interrupted(reason: unknown, effect: string): ConnectError {
  const isDeadline = reason instanceof ConnectError && reason.code === Code.DeadlineExceeded;
  return isDeadline ? deadlineExceeded(effect) : cancelled(effect);
}

export function deadlineExceeded(effect: string): ConnectError {
  return failure("DEADLINE_EXCEEDED", `the deadline passed; ${effect}`);
}

export function cancelled(effect: string): ConnectError {
  return failure("CANCELLED", `the call was cancelled; ${effect}`);
}

/** A fault of the service, logged under this id; the cause is for the log only. */
export function internal(id: string, cause: unknown): ConnectError {
  return failure("INTERNAL", `internal error ${id}`, { cause, metadata: { id } });
}

/** The reason of one of our errors; undefined for others. */
export function reasonOf(error: unknown): string | undefined {
  return infoOf(error)?.reason;
}

/** The limit that an OVERLOADED call met; undefined for other errors. */
export function limitOf(error: unknown): string | undefined {
  return infoOf(error)?.metadata.limit;
}

function infoOf(error: unknown) {
  return error instanceof ConnectError ? error.findDetails(ErrorInfoSchema)[0] : undefined;
}

function failure(
  reason: Reason,
  message: string,
  {
    cause,
    metadata = {},
    code = codes[reason],
  }: { cause?: unknown; metadata?: Record<string, string>; code?: Code } = {},
): ConnectError {
  const value: MessageInitShape<typeof ErrorInfoSchema> = { reason, domain: errorDomain, metadata };
  const details = [{ desc: ErrorInfoSchema, value }];
  const error = new ConnectError(message, code, undefined, details, cause);
  // UNAVAILABLE is always retryable: nothing was done, or a retry is safe.
  if (code === Code.Unavailable) {
    error.details.push({ desc: RetryInfoSchema, value: { retryDelay: { seconds: 1n, nanos: 0 } } });
  }
  return error;
}

/** Adds the authentication scheme (RFC 9110, 11.6.1; RFC 6750, 3). */
function challenge(error: ConnectError, ...parameters: string[]): ConnectError {
  const value = `Bearer ${['realm="investor-records"', ...parameters].join(", ")}`;
  error.metadata.set("www-authenticate", value);
  return error;
}
