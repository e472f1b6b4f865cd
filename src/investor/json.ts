import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import {
  type Content,
  type TextField,
  textFields,
  typeNamed,
  typeNames,
  type Violation,
} from "./investor.ts";

/** The most violations to report at once: 64 KiB can contain eight thousand. */
export const maxViolations = 100;

const members = new Set<string>(["type", ...textFields]);

/** A record in plain JSON, with all members, as strings. */
export function toJson(investor: Investor): string {
  // By hand for speed, since a list can take a million of them.
  let text = `{"id":"${investor.id}","type":"${typeNames.get(investor.type)}"`;
  for (const field of textFields) text += `,"${field}":${JSON.stringify(investor[field])}`;
  return `${text}}`;
}

/**
 * Converts the members of an object to the content of a create request.
 *
 * @returns the content, which lacks what the object does, and a violation for each member that is
 * unknown or not a string, by its own name
 */
export function fromMembers(object: Record<string, unknown>) {
  const content: Content = {};
  const violations: Violation[] = [];
  for (const member of Object.keys(object)) {
    const value = object[member];
    if (!members.has(member)) {
      if (violations.length >= maxViolations) continue;
      violations.push({ in: "body", key: member, rule: "is not a member of an investor" });
    } else if (typeof value !== "string") {
      violations.push({ in: "body", key: member, rule: "must be a string" });
    } else if (member === "type") {
      content.type = typeNamed(value);
    } else {
      content[member as TextField] = value;
    }
  }
  return { content, violations };
}

/**
 * Parses a JSON object.
 *
 * @throws {Error} it is not an object, or repeats a name, as protobuf's JSON rejects too; shows only the name
 */
export function parseObject(text: string): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`is not valid JSON${placeOf(error as SyntaxError)}`);
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new Error("is not a JSON object");
  }
  const object = value as Record<string, unknown>;
  const names = Object.keys(object);
  // An object with more names than valid NDJSON is rejected anyway.
  if (names.length > members.size + 1) return object;
  const written = namesIn(text);
  if (written.length <= names.length) return object;
  const repeated = written.find((name, i) => members.has(name) && written.indexOf(name) < i);
  throw new Error(`repeats ${repeated ? `the member ${repeated}` : "a member"}`);
}

/** The position of a JSON error, if V8 reports it; the rest of its message can quote the text. */
function placeOf({ message }: SyntaxError): string {
  const [, line, column] = / \(line (\d+) column (\d+)\)$/.exec(message) ?? [];
  if (line === undefined) return "";
  return ` at ${line === "1" ? "" : `line ${line}, `}column ${column}`;
}

/** The names of an object's members, with repeats: strings at its own level that a colon follows. */
function namesIn(text: string): string[] {
  const names: string[] = [];
  let depth = 0;
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"\s*:?|[[\]{}]/g)) {
    if (token === "{" || token === "[") depth += 1;
    else if (token === "}" || token === "]") depth -= 1;
    else if (depth === 1 && token.endsWith(":")) names.push(JSON.parse(token.slice(0, -1)));
  }
  return names;
}

/** Adds violations to others, but for those of a key that has one already. */
export function addViolations(known: Violation[], others: Violation[]): Violation[] {
  const named = new Set(known.map(({ key }) => key));
  return [...known, ...others.filter(({ key }) => !named.has(key))];
}
