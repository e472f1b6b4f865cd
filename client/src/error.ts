import { type DescMessage, fromBinary, type MessageShape } from "@bufbuild/protobuf";
import { durationMs } from "@bufbuild/protobuf/wkt";
import {
  BadRequestSchema,
  ErrorInfoSchema,
  RetryInfoSchema,
} from "../gen/google/rpc/error_details_pb.js";

/** gRPC status codes by number (https://grpc.io/docs/guides/status-codes). */
const codeNames = [
  "OK",
  "CANCELLED",
  "UNKNOWN",
  "INVALID_ARGUMENT",
  "DEADLINE_EXCEEDED",
  "NOT_FOUND",
  "ALREADY_EXISTS",
  "PERMISSION_DENIED",
  "RESOURCE_EXHAUSTED",
  "FAILED_PRECONDITION",
  "ABORTED",
  "OUT_OF_RANGE",
  "UNIMPLEMENTED",
  "INTERNAL",
  "UNAVAILABLE",
  "DATA_LOSS",
  "UNAUTHENTICATED",
] as const;

/** The name of a gRPC status code. */
export type CodeName = (typeof codeNames)[number];

/** The number of a gRPC status code. */
export const codeOf = (name: CodeName): number => codeNames.indexOf(name);

/** One field that breaks a rule, by its name in TypeScript. */
export interface Violation {
  readonly field: string;
  readonly description: string;
}

/** A detail of an error, with the name of its type. */
export interface Detail {
  readonly type: string;
  readonly value: Uint8Array;
}

/** A failed attempt, as a transport reports it. */
export interface Failure {
  readonly code: number;
  readonly message: string;
  readonly details?: readonly Detail[];
  /** The transport's error. */
  readonly cause?: unknown;
  /** The delay that a proxy asks for, in ms. */
  readonly retryAfterMs?: number | undefined;
  /** Whether nobody has replied, so that a retry multiplies nobody's work. */
  readonly isUnanswered?: boolean;
}

/**
 * A failed call. Its reasons are described in the comments of investor.proto. Failures on the way
 * to the service, such as a wrong address or the caller's deadline, have a code but no reason:
 * FAILED_PRECONDITION if a retry would fail again, such as for an untrusted certificate.
 */
export class InvestorError extends Error {
  override readonly name = "InvestorError";
  /** The gRPC status code: a `status` of grpc-js, a `Code` of Connect. */
  readonly code: number;
  /** The name of the code, such as `NOT_FOUND`. */
  readonly codeName: CodeName;
  /** Why the call failed, for programs, such as `REQUEST_ID_REUSED`. */
  readonly reason: string | undefined;
  /** Data of the reason, such as the `id` of an internal error to quote. */
  readonly metadata: Readonly<Record<string, string>>;
  /** The fields that break a rule. */
  readonly violations: readonly Violation[];
  /** The delay before a retry that the service, or a proxy, asks for, in ms; undefined if none. */
  readonly retryDelayMs: number | undefined;

  /** @param input the type of the request, whose fields violations name */
  constructor(failure: Failure, input: DescMessage) {
    const { code, message, details = [], cause, retryAfterMs } = failure;
    const info = findDetail(details, ErrorInfoSchema);
    const { fieldViolations = [] } = findDetail(details, BadRequestSchema) ?? {};
    const { retryDelay } = findDetail(details, RetryInfoSchema) ?? {};
    const violations = fieldViolations.map(({ field, description }) => ({
      field: input.fields.find(({ name }) => name === field)?.localName ?? field,
      description,
    }));
    const codeName = codeNames[code] ?? "UNKNOWN";
    const text = violations.map(({ field, description }) => `${field} ${description}`).join("; ");
    const reason = info?.reason;
    const title = reason && reason !== codeName ? `${codeName} (${reason})` : codeName;
    super(`${title}: ${text || message}`, { cause });
    this.code = code;
    this.codeName = codeName;
    this.reason = reason;
    this.metadata = info?.metadata ?? {};
    this.violations = violations;
    this.retryDelayMs = retryDelay ? durationMs(retryDelay) : retryAfterMs;
  }
}

/** The failure of a call whose signal was aborted. */
export function cancelled({ reason }: AbortSignal): Failure {
  return { code: codeOf("CANCELLED"), message: "the call was cancelled", cause: reason };
}

/** Parses a Retry-After header (RFC 9110, 10.2.3) to ms from now. */
export function parseRetryAfter(value: unknown): number | undefined {
  const text = String(value);
  const ms = /^\d+$/.test(text) ? Number(text) * 1_000 : Date.parse(text) - Date.now();
  return ms >= 0 ? ms : undefined;
}

/** The first detail of a type; undefined if there is no readable one. */
function findDetail<D extends DescMessage>(
  details: readonly Detail[],
  desc: D,
): MessageShape<D> | undefined {
  const detail = details.find(({ type }) => type === desc.typeName);
  if (detail === undefined) return undefined;
  try {
    return fromBinary(desc, detail.value);
  } catch {
    return undefined;
  }
}
