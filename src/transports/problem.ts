import { type IncomingMessage, type ServerResponse, STATUS_CODES } from "node:http";
import { Code, ConnectError } from "@connectrpc/connect";
import {
  BadRequestSchema,
  ErrorInfoSchema,
  RetryInfoSchema,
} from "../../gen/google/rpc/error_details_pb.js";

/** The media type of {@link Problem} (RFC 9457). */
const problemType = "application/problem+json";

/** Why a request failed, for people and programs (RFC 9457). */
export interface Problem {
  /** A URN for the reason. */
  type: string;
  title: string;
  status: number;
  detail: string;
  /** A stable name for the cause, the same as on the RPC protocols. */
  reason: string;
  /** The metadata of the reason, such as the id that was not found. */
  metadata?: Record<string, string>;
  /** Where the request broke rules, each located in one of three ways. */
  errors?: ProblemError[];
}

/** One rule that the request broke. */
export type ProblemError = { detail: string } & (
  | { /** A JSON pointer into the body (RFC 6901), as a URI fragment. */ pointer: string }
  | { /** The name of a query parameter. */ parameter: string }
  | { /** The name of a header. */ header: string }
);

/** A request that HTTP itself refuses, whichever operation it is meant for. */
export class HttpError extends Error {
  readonly status: keyof typeof routing;
  readonly headers: Record<string, string>;

  constructor(status: keyof typeof routing, detail: string, headers: Record<string, string> = {}) {
    super(detail);
    this.status = status;
    this.headers = headers;
  }

  /** The same as an error of a call. */
  toConnectError(): ConnectError {
    return new ConnectError(this.message, routing[this.status][1]);
  }
}

/** The failure of a request by a method that its path does not have. */
export function methodNotAllowed({ method }: IncomingMessage, allow: string): HttpError {
  return new HttpError(405, `${method} is not allowed here`, { allow });
}

const routing = {
  400: ["MALFORMED_REQUEST", Code.InvalidArgument],
  403: ["FOREIGN_PAGE", Code.PermissionDenied],
  404: ["NOT_FOUND", Code.Unimplemented],
  405: ["METHOD_NOT_ALLOWED", Code.Unimplemented],
  415: ["UNSUPPORTED_MEDIA_TYPE", Code.InvalidArgument],
} as const;

const statuses: Partial<Record<Code, number>> = {
  [Code.Canceled]: 499,
  [Code.InvalidArgument]: 400,
  [Code.NotFound]: 404,
  [Code.AlreadyExists]: 422,
  [Code.Unauthenticated]: 401,
  [Code.PermissionDenied]: 403,
  [Code.ResourceExhausted]: 413,
  [Code.Unavailable]: 503,
  [Code.DeadlineExceeded]: 504,
};

/**
 * Answers with a problem.
 *
 * @param locate where in the request a field of the protobuf contract stands; needed for
 *   errors of calls
 */
export function answerProblem(
  res: ServerResponse,
  error: ConnectError | HttpError,
  locate: (field: string) => Omit<ProblemError, "detail"> = () => ({}),
): void {
  const problem = error instanceof HttpError ? ofHttp(error) : ofCall(error, locate);
  const headers = error instanceof HttpError ? error.headers : callHeaders(error);
  const body = JSON.stringify(problem);
  res.writeHead(problem.status, {
    ...headers,
    "content-type": problemType,
    "content-length": Buffer.byteLength(body),
    "cache-control": "no-store",
    // Rather than to read what is left of the request, which may be much.
    ...(!res.req.complete && res.req.httpVersionMajor === 1 && { connection: "close" }),
  });
  res.end(body);
}

function ofHttp({ status, message }: HttpError): Problem {
  const [reason] = routing[status];
  return { type: urn(reason), title: titleOf(status), status, detail: message, reason };
}

function ofCall(
  error: ConnectError,
  locate: (field: string) => Omit<ProblemError, "detail">,
): Problem {
  const status = statuses[error.code] ?? 500;
  const [info] = error.findDetails(ErrorInfoSchema);
  const reason = info?.reason ?? "INTERNAL";
  const errors = error
    .findDetails(BadRequestSchema)
    .flatMap(({ fieldViolations }) => fieldViolations)
    .map(({ field, description }) => ({ ...locate(field), detail: description }) as ProblemError);
  return {
    type: urn(reason),
    title: titleOf(status),
    status,
    // The message of the error names the fields as the RPC protocols do.
    detail: errors.length > 0 ? "the request breaks rules, listed in errors" : error.rawMessage,
    reason,
    ...(info && Object.keys(info.metadata).length > 0 && { metadata: info.metadata }),
    ...(errors.length > 0 && { errors }),
  };
}

/** The headers that tell of an error what its details tell on the RPC protocols. */
function callHeaders(error: ConnectError): Record<string, string> {
  const [retry] = error.findDetails(RetryInfoSchema);
  const challenge = error.metadata.get("www-authenticate");
  return {
    ...(retry?.retryDelay && { "retry-after": String(retry.retryDelay.seconds) }),
    ...(challenge !== null && { "www-authenticate": challenge }),
  };
}

/** What a status is called; 499 is no status of HTTP, but common. */
function titleOf(status: number): string {
  return STATUS_CODES[status] ?? "Client Closed Request";
}

function urn(reason: string): string {
  return `urn:investor-records:problem:${reason.toLowerCase().replaceAll("_", "-")}`;
}
