import { create, type DescMessage, type Message } from "@bufbuild/protobuf";
import { ConnectError } from "@connectrpc/connect";
import { BadRequestSchema } from "../../gen/google/rpc/error_details_pb.js";
import {
  type CreateInvestorRequest,
  CreateInvestorRequestSchema,
  GetInvestorRequestSchema,
  InvestorType,
  ListInvestorsRequestSchema,
} from "../../gen/investor/v1/investor_pb.js";
import type { Exchange } from "../http/exchange.ts";
import { textFields, typesByName } from "../investor.ts";
import { invalidFields, malformedRequest, type Violation } from "../service/errors.ts";
import { checkList, findViolations } from "../service/validation.ts";
import { httpError, type ProblemError } from "./problem.ts";

/** Where the investors are. */
export const collection = "/v1/investors";

const members = new Set<string>(["type", ...textFields]);

// What stands before the field of a violation that is none of the contract.
const queryMark = "?";
const bodyMark = "#/";

/**
 * Reads a create: a JSON object of the eleven members, and the header Idempotency-Key, quoted or
 * bare.
 *
 * @throws {ConnectError} UNSUPPORTED_MEDIA_TYPE; MALFORMED_REQUEST, if it is no JSON object;
 *   INVALID_FIELDS, with every rule that the request breaks, if a member is none of the eleven or
 *   not a string
 */
export function readCreate(exchange: Exchange, body: Uint8Array): CreateInvestorRequest {
  requireJson(exchange);
  const object = parseObject(body);
  const request = create(CreateInvestorRequestSchema);
  const violations = queryViolations(exchange, []);
  for (const [member, value] of Object.entries(object)) {
    const field = bodyMark + toPointer(member);
    if (!members.has(member)) {
      violations.push({ field, description: "is not a member of an investor" });
    } else if (typeof value !== "string") {
      violations.push({ field, description: "must be a string" });
    }
  }
  for (const field of textFields) {
    const value = object[field];
    if (typeof value === "string") request[field] = value;
  }
  if (typeof object.type === "string") {
    request.type = typesByName.get(object.type) ?? InvestorType.UNSPECIFIED;
  }
  const key = exchange.header("idempotency-key");
  if (key !== undefined) request.requestId = key.replace(/^"(.*)"$/, "$1");
  throwIfAny(violations, () => findViolations(request));
  return request;
}

/**
 * Reads a get, whose path ends in the id.
 *
 * @throws {ConnectError} MALFORMED_REQUEST, if its escapes are not UTF-8; INVALID_FIELDS
 */
export function readGet(exchange: Exchange): Message {
  throwIfAny(queryViolations(exchange, []));
  try {
    const id = decodeURIComponent(exchange.path.slice(collection.length + 1));
    return create(GetInvestorRequestSchema, { id });
  } catch (error) {
    throw malformedRequest(error);
  }
}

/**
 * Reads the list of one page.
 *
 * @throws {ConnectError} INVALID_FIELDS, with every rule that the query breaks
 */
export function readList(exchange: Exchange): Message {
  const violations = queryViolations(exchange, ["pageSize", "pageToken"]);
  const query = new URLSearchParams(exchange.query);
  const size = query.get("pageSize");
  const pageSize = /^-?\d{1,10}$/.test(size ?? "0") ? Number(size) : Number.NaN;
  if (pageSize !== (pageSize | 0)) {
    const description = "must be a whole number of 32 bits";
    violations.push({ field: `${queryMark}pageSize`, description });
  }
  const request = create(ListInvestorsRequestSchema, {
    pageSize: pageSize | 0,
    pageToken: query.get("pageToken") ?? "",
  });
  throwIfAny(violations, () => brokenBy(() => checkList(request)));
  return request;
}

/** Where in a request the field of a violation stands. */
export function locate({ method }: Exchange, field: string): Omit<ProblemError, "detail"> {
  if (field.startsWith(queryMark)) return { parameter: field.slice(queryMark.length) };
  if (field.startsWith(bodyMark)) return { pointer: field };
  if (field === "request_id") return { header: "Idempotency-Key" };
  if (method === "POST")
    return { pointer: bodyMark + toMember(CreateInvestorRequestSchema, field) };
  return { parameter: toMember(ListInvestorsRequestSchema, field) };
}

function requireJson({ headers }: Exchange): void {
  const [type = ""] = (headers["content-type"] ?? "").split(";");
  if (type.trim().toLowerCase() !== "application/json") {
    throw httpError(415, "the body must be application/json");
  }
  if ((headers["content-encoding"] ?? "identity") !== "identity") {
    throw httpError(415, "the body must not be compressed", { "accept-encoding": "identity" });
  }
}

/** What of the query is not accepted, or given more than once. */
function queryViolations({ query }: Exchange, accepted: string[]): Violation[] {
  const names = [...new URLSearchParams(query).keys()];
  return [...new Set(names)].flatMap((name) => {
    const field = queryMark + name;
    if (!accepted.includes(name)) return [{ field, description: "is not a parameter" }];
    const isRepeated = names.indexOf(name) !== names.lastIndexOf(name);
    return isRepeated ? [{ field, description: "must be given once" }] : [];
  });
}

/**
 * @param findOthers finds what else the request breaks, in fields of the contract
 * @throws {ConnectError} INVALID_FIELDS with all, if there are violations
 */
function throwIfAny(violations: Violation[], findOthers: () => Violation[] = () => []): void {
  if (violations.length === 0) return;
  const named = new Set(violations.map(({ field }) => field));
  const isNew = ({ field }: Violation) =>
    !named.has(bodyMark + toMember(CreateInvestorRequestSchema, field)) &&
    !named.has(queryMark + toMember(ListInvestorsRequestSchema, field));
  throw invalidFields([...violations, ...findOthers().filter(isNew)]);
}

/** The violations for which a check throws. */
function brokenBy(check: () => void): Violation[] {
  try {
    check();
    return [];
  } catch (error) {
    const details = ConnectError.from(error).findDetails(BadRequestSchema);
    return details.flatMap(({ fieldViolations }) => fieldViolations);
  }
}

/** The name that a field of the protobuf contract has in plain JSON. */
function toMember({ fields }: DescMessage, field: string): string {
  return fields.find(({ name }) => name === field)?.jsonName ?? field;
}

/** A member's name in a JSON pointer (RFC 6901) in a URI fragment. */
function toPointer(member: string): string {
  return encodeURIComponent(member.toWellFormed().replaceAll("~", "~0").replaceAll("/", "~1"));
}

function parseObject(body: Uint8Array): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(body));
  } catch (error) {
    throw malformedRequest(error);
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw malformedRequest();
  return value as Record<string, unknown>;
}
