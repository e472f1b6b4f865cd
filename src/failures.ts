import { Code } from "@connectrpc/connect";
import type { Violation } from "./investor/investor.ts";

/** Every reason for which a call is rejected or fails, with its code on every protocol. */
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
} as const satisfies Record<string, Code>;

export type Reason = keyof typeof codes;

/** The name of a status code in gRPC (https://grpc.io/docs/guides/status-codes). */
export function nameOf(code: Code): string {
  if (code === Code.Canceled) return "CANCELLED";
  return (Code[code] ?? "Unknown").replaceAll(/\B[A-Z]/g, "_$&").toUpperCase();
}

/** How long to wait before a call that failed with UNAVAILABLE is repeated, in milliseconds. */
const retryAfterMs = 1_000;

/** What a {@link Failure} is made of, besides its message. */
type FailureData = Pick<Failure, "code"> &
  Partial<Pick<Failure, "reason" | "metadata" | "violations" | "headers" | "cause">>;

/** Why a call or a request fails, as data that each protocol writes in its own way. Its cause is for the log only. */
export class Failure extends Error {
  readonly code: Code;
  /** A stable name for what went wrong; none where a protocol has only its code. */
  readonly reason: string | undefined;
  /** More about it, by the names of google.rpc.ErrorInfo.metadata. */
  readonly metadata: Readonly<Record<string, string>>;
  readonly violations: readonly Violation[];
  /** Fields of an HTTP reply; gRPC has them as trailers. */
  readonly headers: Readonly<Record<string, string>>;
  /** Set if the call can be repeated after this time: nothing was done, or a repeated one is safe. */
  readonly retryAfterMs: number | undefined;

  constructor(message: string, data: FailureData) {
    super(message, { cause: data.cause });
    this.code = data.code;
    this.reason = data.reason;
    this.metadata = data.metadata ?? {};
    this.violations = data.violations ?? [];
    this.headers = data.headers ?? {};
    this.retryAfterMs = data.code === Code.Unavailable ? retryAfterMs : undefined;
  }
}

/** Some fields break rules; has them all, so that a caller can fix them in one go. */
export function invalidFields(violations: readonly Violation[]): Failure {
  return failure("INVALID_FIELDS", "the request breaks rules, listed in errors", { violations });
}

/** The request is not a message of the type that the method takes. */
export function malformedRequest(
  cause?: unknown,
  description = "the request is not a valid message of this method",
): Failure {
  // The decoder's message is useful for its names, but its values would be personal data.
  const safe = /^cannot decode \w+ [\w.]+ from JSON(: key "[^"]{0,100}" is unknown)?/;
  const [message = description] = (cause instanceof Error && safe.exec(cause.message)) || [];
  return failure("MALFORMED_REQUEST", message.toWellFormed(), { cause });
}

export function messageTooLarge(maxBytes: number): Failure {
  return failure("MESSAGE_TOO_LARGE", `the request must be at most ${maxBytes} bytes long`);
}

/** No record has this id. `id` is undefined for text that is not a UUID: it can be of any length. */
export function investorNotFound(id: string | undefined): Failure {
  return failure("INVESTOR_NOT_FOUND", "no investor has this id", {
    metadata: id === undefined ? {} : { id },
  });
}

export function requestIdReused(): Failure {
  return failure("REQUEST_ID_REUSED", "the request id was used before, for other content");
}

export function credentialsMissing(needed: string): Failure {
  return failure("CREDENTIALS_MISSING", `the call needs ${needed}`, { headers: challenge() });
}

export function credentialsInvalid(needed: string, cause: unknown): Failure {
  const message = `the credentials are not valid here; the call needs ${needed}`;
  const headers = challenge('error="invalid_token"');
  return failure("CREDENTIALS_INVALID", message, { cause, headers });
}

export function scopeMissing(scope: string): Failure {
  const headers = challenge(`error="insufficient_scope", scope="${scope}"`);
  return failure("SCOPE_MISSING", `the call needs the scope ${scope}`, { headers });
}

/** The issuer's keys, needed to verify a token, cannot be fetched. */
export function issuerUnavailable(cause: unknown): Failure {
  const message = "the token cannot be checked now; repeat the call later";
  return failure("ISSUER_UNAVAILABLE", message, { cause });
}

/**
 * A limit is reached; the call was not processed.
 *
 * @param limit what there is too much of, in the plural, for callers, the log and the metrics
 */
export function overloaded(limit: string): Failure {
  const message = `too many ${limit} at once; repeat the call later`;
  return failure("OVERLOADED", message, { metadata: { limit } });
}

/** The store cannot be reached or cannot write; the call changed nothing. */
export function storeUnavailable(cause: unknown): Failure {
  const message = "the store is not available and nothing was written; repeat the call later";
  return failure("STORE_UNAVAILABLE", message, { cause });
}

/** A create with an unknown outcome that is safe to retry, since its request id identifies replays. */
export function outcomeUnknown(cause: unknown): Failure {
  const message = "the record may or may not be stored; repeat the call with the same request id";
  return failure("OUTCOME_UNKNOWN", message, { cause });
}

/**
 * A create with an unknown outcome that must not be retried: a retry would store a second record.
 * Its code is UNKNOWN, without a delay, since clients retry UNAVAILABLE by themselves.
 */
export function outcomeUnknownFor(id: string, cause: unknown): Failure {
  const message = "the record may or may not be stored; look its id up before you repeat the call";
  return failure("OUTCOME_UNKNOWN", message, { cause, metadata: { id }, code: Code.Unknown });
}

/**
 * A call was aborted: its deadline passed, or its caller left.
 *
 * @param reason the signal's reason
 * @param effect what the call may have done
 */
export function interrupted(reason: unknown, effect: string): Failure {
  const isDeadline = reason instanceof Failure && reason.code === Code.DeadlineExceeded;
  return isDeadline ? deadlineExceeded(effect) : cancelled(effect);
}

export function deadlineExceeded(effect: string): Failure {
  return failure("DEADLINE_EXCEEDED", `the deadline passed; ${effect}`);
}

export function cancelled(effect: string): Failure {
  return failure("CANCELLED", `the call was cancelled; ${effect}`);
}

/** A fault of the service, logged under this id; the cause is for the log only. */
export function internal(id: string, cause: unknown): Failure {
  return failure("INTERNAL", `internal error ${id}`, { cause, metadata: { id } });
}

function failure(reason: Reason, message: string, data: Partial<FailureData> = {}): Failure {
  return new Failure(message, { code: codes[reason], ...data, reason });
}

/** The authentication scheme in a header (RFC 9110, 11.6.1; RFC 6750, 3). */
function challenge(...parameters: string[]): Record<string, string> {
  return {
    "www-authenticate": `Bearer ${['realm="investor-records"', ...parameters].join(", ")}`,
  };
}
