import { isUtf8 } from "node:buffer";
import { create, type Message } from "@bufbuild/protobuf";
import {
  type CreateInvestorRequest,
  CreateInvestorRequestSchema,
  GetInvestorRequestSchema,
  ListInvestorsRequestSchema,
} from "../../gen/investor/v1/investor_pb.js";
import { invalidFields, malformedRequest } from "../failures.ts";
import { type HttpRequest, pathOf, queryOf } from "../http/request.ts";
import { findViolations, type Violation } from "../investor/investor.ts";
import { addViolations, fromMembers, maxViolations, parseObject } from "../investor/json.ts";
import { findListViolations } from "../investor/paging.ts";
import { httpError, type Location } from "./problem.ts";

/** The path of the investors. */
export const collection = "/v1/investors";

/**
 * Reads a create: a JSON object, and the header Idempotency-Key, quoted or bare.
 *
 * @throws {Failure} UNSUPPORTED_MEDIA_TYPE; MALFORMED_REQUEST if the body is not a JSON object;
 * INVALID_FIELDS with every broken rule, including unknown members and values that are not strings
 */
export function readCreate(httpRequest: HttpRequest, body: Uint8Array): CreateInvestorRequest {
  requireJson(httpRequest);
  const { content, violations } = fromMembers(readObject(body));
  const key = httpRequest.headers["idempotency-key"];
  // Only in a message, an empty request id is none: quotes are no UUID.
  if (key !== undefined) content.requestId = String(key || '""').replace(/^"(.+)"$/, "$1");
  const ofQuery = findQueryViolations(queryOf(httpRequest), []);
  const ofContent = findViolations(content).map(
    (each): Violation =>
      each.key === "requestId" ? { ...each, in: "header", key: "Idempotency-Key" } : each,
  );
  const all = [...ofQuery, ...addViolations(violations, ofContent)];
  if (all.length > 0) throw invalidFields(all);
  return create(CreateInvestorRequestSchema, content);
}

/**
 * Parses a body as a JSON object.
 *
 * @throws {Failure} MALFORMED_REQUEST, with the position of the error but no content of the body
 */
export function readObject(body: Uint8Array): Record<string, unknown> {
  if (!isUtf8(body)) throw malformedRequest(undefined, "the body is not UTF-8");
  try {
    return parseObject(new TextDecoder().decode(body));
  } catch (error) {
    throw malformedRequest(error, `the body ${(error as Error).message}`);
  }
}

/**
 * Reads a get, whose path ends in the id.
 *
 * @throws {Failure} MALFORMED_REQUEST if its escapes are not UTF-8; INVALID_FIELDS
 */
export function readGet(request: HttpRequest): Message {
  const violations = findQueryViolations(queryOf(request), []);
  if (violations.length > 0) throw invalidFields(violations);
  try {
    const id = decodeURIComponent(pathOf(request).slice(collection.length + 1));
    return create(GetInvestorRequestSchema, { id });
  } catch (error) {
    throw malformedRequest(error, "the id in the path must be percent-encoded UTF-8");
  }
}

/**
 * Reads the request for one page.
 *
 * @throws {Failure} INVALID_FIELDS, with every rule that the query breaks
 */
export function readList(httpRequest: HttpRequest): Message {
  const query = queryOf(httpRequest);
  const violations = findQueryViolations(query, ["pageSize", "pageToken"]);
  const size = query.get("pageSize");
  const pageSize = /^-?\d{1,10}$/.test(size ?? "0") ? Number(size) : Number.NaN;
  if (pageSize !== (pageSize | 0)) {
    const rule = "must be a whole number of 32 bits";
    violations.push({ in: "query", key: "pageSize", rule });
  }
  const request = create(ListInvestorsRequestSchema, {
    pageSize: pageSize | 0,
    pageToken: query.get("pageToken") ?? "",
  });
  if (violations.length === 0) return request;
  throw invalidFields(addViolations(violations, findListViolations(request)));
}

/** Where a request breaks a rule: the message's fields are where this protocol has them. */
export function locate({ method }: HttpRequest, { in: place, key }: Violation): Location {
  if (place === "header") return { header: key };
  const isInBody = place === "body" && method === "POST";
  return isInBody ? { pointer: `#/${toPointer(key)}` } : { parameter: key };
}

function requireJson({ headers }: HttpRequest): void {
  const [type = "", ...parameters] = (headers["content-type"] ?? "").toLowerCase().split(";");
  const isOther = (parameter: string) => !/^\s*charset=("?)utf-?8\1\s*$/.test(parameter);
  const charsets = parameters.filter((each) => each.trim().startsWith("charset"));
  if (type.trim() !== "application/json" || charsets.some(isOther)) {
    throw httpError(415, "the Content-Type must be application/json, in UTF-8");
  }
  if ((headers["content-encoding"] ?? "identity") !== "identity") {
    throw httpError(415, "the body must not be compressed", { "accept-encoding": "identity" });
  }
}

/** Unknown parameters ({@link maxViolations} at most), and parameters given more than once. */
function findQueryViolations(query: URLSearchParams, accepted: string[]): Violation[] {
  const names = new Set(query.keys());
  const unknown = [...names].filter((name) => !accepted.includes(name)).slice(0, maxViolations);
  const repeated = accepted.filter((name) => query.getAll(name).length > 1);
  const of = (key: string, rule: string): Violation => ({ in: "query", key, rule });
  return [
    ...unknown.map((name) => of(name, "is not a parameter")),
    ...repeated.map((name) => of(name, "must be given once")),
  ];
}

/** A member's name in a JSON pointer (RFC 6901) in a URI fragment. */
function toPointer(member: string): string {
  return encodeURIComponent(member.toWellFormed().replaceAll("~", "~0").replaceAll("/", "~1"));
}
