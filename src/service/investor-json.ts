import { create } from "@bufbuild/protobuf";
import {
  CreateInvestorRequestSchema,
  type Investor,
  InvestorType,
  ListInvestorsRequestSchema,
} from "../../gen/investor/v1/investor_pb.js";
import type { Violation } from "./errors.ts";
import { type TextField, textFields, typeNames, typesByName } from "./investor.ts";

/** The most mistakes to report at once: 64 KiB can have eight thousand. */
export const maxViolations = 100;

const members = new Set<string>(["type", ...textFields]);

/** A record in plain JSON: all members are there, and strings. */
export function toJson(investor: Investor): string {
  // Put together by hand, since a list makes a million of them.
  let text = `{"id":"${investor.id}","type":"${typeNames.get(investor.type)}"`;
  for (const field of textFields) text += `,"${field}":${JSON.stringify(investor[field])}`;
  return `${text}}`;
}

/**
 * The request to create what the members of an object describe, as far as they do.
 *
 * @returns a violation for each member that is unknown or not a string, by its own name
 */
export function fromMembers(object: Record<string, unknown>) {
  const request = create(CreateInvestorRequestSchema);
  const violations: Violation[] = [];
  for (const member of Object.keys(object)) {
    if (violations.length === maxViolations) break;
    const value = object[member];
    if (!members.has(member)) {
      violations.push({ field: member, description: "is not a member of an investor" });
    } else if (typeof value !== "string") {
      violations.push({ field: member, description: "must be a string" });
    } else if (member === "type") {
      request.type = typesByName.get(value) ?? InvestorType.UNSPECIFIED;
    } else {
      request[member as TextField] = value;
    }
  }
  return { request, violations };
}

/**
 * The object that a text in JSON is.
 *
 * @throws {Error} it is none, or repeats a name among strings (RFC 8259, 4), which the JSON of
 *   protobuf refuses too; the message says which, and nothing of the text but that name
 */
export function parseObject(text: string): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    // What the parser says quotes the text, and seldom has the place.
    const before = text.slice(0, findSyntaxError(text)).split("\n");
    const column = (before.at(-1)?.length ?? 0) + 1;
    const line = text.includes("\n") ? `line ${before.length}, ` : "";
    throw new Error(`is not valid JSON at ${line}column ${column}`);
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new Error("is not a JSON object");
  }
  const object = value as Record<string, unknown>;
  const names = Object.keys(object);
  // More than a line of NDJSON has, which holds an id too, are refused anyway.
  if (names.length > members.size + 1) return object;
  const isFlat = names.every((name) => typeof object[name] === "string");
  const written = isFlat ? namesIn(text) : [];
  if (written.length <= names.length) return object;
  const repeated = written.find((name, i) => members.has(name) && written.indexOf(name) < i);
  throw new Error(`repeats ${repeated ? `the member ${repeated}` : "a member"}`);
}

const jsonToken =
  /"(?:[^"\\\p{Cc}]|[\x7f-\x9f]|\\(?:["\\/bfnrt]|u[\da-fA-F]{4}))*"|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|[{}[\],:]/uy;

/** The index of the first token of a text that is wrong in JSON, or of its end. */
function findSyntaxError(text: string): number {
  const open: ("object" | "array")[] = [];
  let expected: "value" | "first value" | "name" | "first name" | "colon" | "rest" = "value";
  let index = 0;
  for (;;) {
    while (" \t\r\n".includes(text[index] ?? "end")) index += 1;
    jsonToken.lastIndex = index;
    const [token] = jsonToken.exec(text) ?? [];
    if (token === undefined) return index;
    const inside = open.at(-1);
    const isValue = expected === "value" || expected === "first value";
    const canEnd = expected.startsWith("first") || expected === "rest";
    if (isValue && token === "{") {
      open.push("object");
      expected = "first name";
    } else if (isValue && token === "[") {
      open.push("array");
      expected = "first value";
    } else if (canEnd && token === (inside === "object" ? "}" : "]") && inside) {
      open.pop();
      expected = "rest";
    } else if (expected === "rest" && token === "," && inside) {
      expected = inside === "object" ? "name" : "value";
    } else if (expected === "colon" && token === ":") {
      expected = "value";
    } else if (expected.endsWith("name") && token.startsWith('"')) {
      expected = "colon";
    } else if (isValue && !/^[}\],:]/.test(token)) {
      expected = "rest";
    } else {
      return index;
    }
    index += token.length;
  }
}

/** The names in a text of JSON: of its strings, those before a colon. */
function namesIn(text: string): string[] {
  const strings = text.match(/"(?:[^"\\]|\\.)*"\s*:?/g) ?? [];
  return strings.filter((each) => each.endsWith(":")).map((each) => JSON.parse(each.slice(0, -1)));
}

/**
 * Adds to violations in members those in fields of the contract whose members have none yet.
 *
 * @param mark the prefix of the names of members
 */
export function addViolations(known: Violation[], others: Violation[], mark = ""): Violation[] {
  const named = new Set(known.map(({ field }) => field));
  return [...known, ...others.filter(({ field }) => !named.has(mark + toMember(field)))];
}

/** The name that a field of the protobuf contract has in plain JSON. */
export function toMember(field: string): string {
  const fields = [...CreateInvestorRequestSchema.fields, ...ListInvestorsRequestSchema.fields];
  return fields.find(({ name }) => name === field)?.jsonName ?? field;
}
