import type { IncomingMessage } from "node:http";
import { invalidFields, malformedRequest, messageTooLarge } from "../service/errors.ts";
import { readBody } from "./body.ts";
import { HttpError, type ProblemError } from "./problem.ts";
import { toMember } from "./rest-json.ts";

/** Marks the field of a violation as a parameter of the query. */
const queryMark = "?";

/**
 * The body of a request that must be JSON; not parsed yet.
 *
 * @throws {HttpError} 415, if it is anything else
 * @throws {ConnectError} MESSAGE_TOO_LARGE
 */
export async function readJsonBody(req: IncomingMessage, maxBytes: number): Promise<Uint8Array> {
  const [type = ""] = (req.headers["content-type"] ?? "").split(";");
  if (type.trim().toLowerCase() !== "application/json") {
    throw new HttpError(415, "the body must be application/json");
  }
  if ((req.headers["content-encoding"] ?? "identity") !== "identity") {
    throw new HttpError(415, "the body must not be compressed", { "accept-encoding": "identity" });
  }
  return readBody(req, maxBytes, () => messageTooLarge(maxBytes));
}

/**
 * The parameters of the query, of which only those given are accepted, once each.
 *
 * @throws {ConnectError} INVALID_FIELDS, with every other one
 */
export function readQuery({ url = "" }: IncomingMessage, accepted: string[]): Map<string, string> {
  const start = url.indexOf("?");
  const query = new URLSearchParams(start === -1 ? "" : url.slice(start));
  const names = [...query.keys()];
  const violations = [...new Set(names)].flatMap((name) => {
    const field = queryMark + name;
    if (!accepted.includes(name)) return [{ field, description: "is not a parameter" }];
    const isRepeated = names.indexOf(name) !== names.lastIndexOf(name);
    return isRepeated ? [{ field, description: "must be given once" }] : [];
  });
  if (violations.length > 0) throw invalidFields(violations);
  return new Map(query);
}

/**
 * The size of a page as the query gives it; 0, which is the default, if it does not.
 *
 * @throws {ConnectError} INVALID_FIELDS, if it is not a number of 32 bits
 */
export function readPageSize(text: string | undefined): number {
  if (text === undefined) return 0;
  const size = /^-?\d{1,10}$/.test(text) ? Number(text) : Number.NaN;
  if (size === (size | 0)) return size;
  const description = "must be a whole number of 32 bits";
  throw invalidFields([{ field: `${queryMark}pageSize`, description }]);
}

/**
 * A segment of the path as it is meant.
 *
 * @throws {ConnectError} MALFORMED_REQUEST, if its escapes are not UTF-8
 */
export function decodeSegment(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch (error) {
    throw malformedRequest(error);
  }
}

/** Where in a request the field of a violation stands. */
export function locate(req: IncomingMessage, field: string): Omit<ProblemError, "detail"> {
  if (field.startsWith(queryMark)) return { parameter: field.slice(queryMark.length) };
  if (field === "request_id") return { header: "Idempotency-Key" };
  const member = toMember(field);
  if (req.method !== "POST") return { parameter: member };
  return { pointer: `#/${encodeURIComponent(member.replaceAll("~", "~0").replaceAll("/", "~1"))}` };
}
