import { STATUS_CODES } from "node:http";
import { Code } from "@connectrpc/connect";
import { codeToHttpStatus } from "@connectrpc/connect/protocol-connect";
import { Failure } from "../failures.ts";
import { type HttpResponse, send } from "../http/reply.ts";
import type { HttpRequest } from "../http/request.ts";
import type { Violation } from "../investor/investor.ts";

/** Headers of a JSON reply, which may hold a record. */
export const jsonHeaders = { "content-type": "application/json", "cache-control": "no-store" };

/** Part of a request: a JSON pointer into the body (RFC 6901, 6), or the name of a parameter or header. */
export type Location = { pointer: string } | { parameter: string } | { header: string };

/** Spells the part of a request that breaks a rule. */
type Locate = (violation: Violation) => Location;

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

export function httpError(
  status: keyof typeof refusals,
  message: string,
  headers: Record<string, string> = {},
): Failure {
  const [reason, code] = refusals[status];
  return new Failure(message, { code, reason, headers });
}

export function methodNotAllowed({ method }: HttpRequest, allow: string): Failure {
  return httpError(405, `${method} is not allowed here`, { allow });
}

/** Replies with a problem (RFC 9457), which openapi.json describes. */
export function sendProblem(response: HttpResponse, failure: Failure, locate?: Locate): void {
  const problem = toProblem(failure, locate);
  const { retryAfterMs } = failure;
  const headers = {
    ...failure.headers,
    ...(retryAfterMs && { "retry-after": String(retryAfterMs / 1_000) }),
    "content-type": "application/problem+json",
    "cache-control": "no-store",
  };
  send(response, problem.status, headers, JSON.stringify(problem));
}

function toProblem(failure: Failure, locate?: Locate) {
  const { message, code, reason = "INTERNAL", metadata, violations } = failure;
  const status = statusByReason.get(reason) ?? statusByCode[code] ?? codeToHttpStatus(code);
  const errors = violations.map((each) => ({ ...locate?.(each), detail: each.rule }));
  return {
    type: `urn:investor-records:problem:${reason.toLowerCase().replaceAll("_", "-")}`,
    // 499 is common, but not an HTTP standard.
    title: STATUS_CODES[status] ?? "Client Closed Request",
    status,
    detail: message,
    reason,
    ...(Object.keys(metadata).length > 0 && { metadata }),
    ...(errors.length > 0 && { errors }),
  };
}
