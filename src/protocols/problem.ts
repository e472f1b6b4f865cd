import { STATUS_CODES } from "node:http";
import { Code, ConnectError } from "@connectrpc/connect";
import { codeToHttpStatus } from "@connectrpc/connect/protocol-connect";
import {
  BadRequestSchema,
  ErrorInfoSchema,
  RetryInfoSchema,
} from "../../gen/google/rpc/error_details_pb.js";
import { errorDomain } from "../errors.ts";
import { type HttpResponse, send } from "../http/reply.ts";
import type { HttpRequest } from "../http/request.ts";

/** Headers of a JSON reply, which may hold a record. */
export const jsonHeaders = { "content-type": "application/json", "cache-control": "no-store" };

/** Part of a request: a JSON pointer into the body (RFC 6901, 6), or the name of a parameter or header. */
export type Location = { pointer: string } | { parameter: string } | { header: string };

/** Finds the part of a request that holds a field of the protobuf contract. */
type Locate = (field: string) => Location;

/** Errors at the level of HTTP, for any operation. */
const refusals = {
  400: ["MALFORMED_REQUEST", Code.InvalidArgument],
  403: ["CROSS_ORIGIN", Code.PermissionDenied],
  404: ["NOT_FOUND", Code.Unimplemented],
  405: ["METHOD_NOT_ALLOWED", Code.Unimplemented],
  415: ["UNSUPPORTED_MEDIA_TYPE", Code.InvalidArgument],
} as const;

const statusByReason = new Map<string, number>(
  Object.entries(refusals).map(([status, [reason]]) => [reason, Number(status)]),
);

/** Statuses that differ from Connect's. */
const statusByCode: Partial<Record<Code, number>> = {
  [Code.AlreadyExists]: 422,
  [Code.ResourceExhausted]: 413,
};

/** Creates an error at the level of HTTP. */
export function httpError(
  status: keyof typeof refusals,
  message: string,
  headers: Record<string, string> = {},
): ConnectError {
  const [reason, code] = refusals[status];
  const value = { reason, domain: errorDomain };
  return new ConnectError(message, code, headers, [{ desc: ErrorInfoSchema, value }]);
}

/** The error for a method that a path does not have. */
export function methodNotAllowed({ method }: HttpRequest, allow: string): ConnectError {
  return httpError(405, `${method} is not allowed here`, { allow });
}

/** Replies with a problem (RFC 9457), which openapi.json describes. */
export function sendProblem(response: HttpResponse, error: ConnectError, locate?: Locate): void {
  const problem = toProblem(error, locate);
  const [retry] = error.findDetails(RetryInfoSchema);
  const headers = {
    ...Object.fromEntries(error.metadata),
    ...(retry?.retryDelay && { "retry-after": String(retry.retryDelay.seconds) }),
    "content-type": "application/problem+json",
    "cache-control": "no-store",
  };
  send(response, problem.status, headers, JSON.stringify(problem));
}

function toProblem(error: ConnectError, locate?: Locate) {
  const [info] = error.findDetails(ErrorInfoSchema);
  const reason = info?.reason ?? "INTERNAL";
  const status =
    statusByReason.get(reason) ?? statusByCode[error.code] ?? codeToHttpStatus(error.code);
  const errors = error
    .findDetails(BadRequestSchema)
    .flatMap(({ fieldViolations }) => fieldViolations)
    .map(({ field, description }) => ({ ...locate?.(field), detail: description }));
  return {
    type: `urn:investor-records:problem:${reason.toLowerCase().replaceAll("_", "-")}`,
    // 499 is common, but not an HTTP standard.
    title: STATUS_CODES[status] ?? "Client Closed Request",
    status,
    // The error's own message names fields by their protobuf names.
    detail: errors.length > 0 ? "the request breaks rules, listed in errors" : error.rawMessage,
    reason,
    ...(info && Object.keys(info.metadata).length > 0 && { metadata: info.metadata }),
    ...(errors.length > 0 && { errors }),
  };
}
