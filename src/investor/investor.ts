import { create } from "@bufbuild/protobuf";
import {
  type CreateInvestorRequest,
  type Investor,
  InvestorSchema,
  InvestorType,
} from "../../gen/investor/v1/investor_pb.js";
import { isUuid, maxUuid, nilUuid } from "./ids.ts";

/** The text fields of the first release, which plain JSON has to name. */
export const firstFields = [
  "firstName",
  "middleName",
  "lastName",
  "addressLine1",
  "addressLine2",
  "city",
  "state",
  "zipCode",
  "country",
  "language",
] as const satisfies (keyof Investor)[];

/** Text fields that were added later, oldest first: optional, and empty in records that lack them. */
export const laterFields = [] as const satisfies (keyof Investor)[];

/** The text fields of a record, except its id, in the order of the contract. */
export const textFields = [...firstFields, ...laterFields] as const;

export type TextField = (typeof textFields)[number];

/** What a create request has; plain JSON, and records of other programs, may lack any of it. */
export type Content = Partial<Pick<CreateInvestorRequest, "type" | TextField | "requestId">>;

/** Investor types by their names outside of protobuf. */
const typesByName: ReadonlyMap<string, InvestorType> = new Map([
  ["individual", InvestorType.INDIVIDUAL],
  ["institution", InvestorType.INSTITUTION],
]);

export const typeNames: ReadonlyMap<InvestorType, string> = new Map(
  Array.from(typesByName, ([name, type]) => [type, name]),
);

/** The investor type of this name; one that breaks the rules if there is none. */
export function typeNamed(name: string): InvestorType {
  // UNSPECIFIED would be an omitted type.
  return typesByName.get(name) ?? (-1 as InvestorType);
}

/** One part of a request, or of a record, that breaks a rule; each protocol spells its place. */
export interface Violation {
  in: "body" | "query" | "header";
  /** The name of a field in JSON, or of a parameter or header; of an unknown one, any text. */
  key: string;
  /** What it must be. */
  rule: string;
}

/** The longest text, in Unicode code points. */
export const maxTextLength = 256;

/** Text fields that hold a code of at most three letters. */
const codeFields: ReadonlySet<TextField> = new Set(["country", "language"]);

const later: ReadonlySet<TextField> = new Set(laterFields);

/** The most bytes that a text adds on the wire: its tag and length. */
const textOverhead = 4;

/** The most bytes that a record adds to its texts on the wire: id, type, and its tag and length in a list. */
const recordOverhead = 45;

/** The size of the largest valid record, by {@link maxSerialisedSize}. */
export const maxRecordBytes = textFields.reduce(
  (size, key) => size + textOverhead + (codeFields.has(key) ? 3 : 4 * maxTextLength),
  recordOverhead,
);

/** The record of a valid request, without an id. */
export function toInvestor(request: CreateInvestorRequest): Investor {
  const investor = create(InvestorSchema);
  investor.type = request.type;
  for (const key of textFields) investor[key] = request[key];
  return investor;
}

/** All rules that a create request, or a record, breaks, in the order of the fields. */
export function findViolations(request: Content): Violation[] {
  const violations: Violation[] = [];
  const note = (key: keyof Content, rule?: string) => {
    if (rule !== undefined) violations.push({ in: "body", key, rule });
  };

  note("type", wrongType(request.type));
  for (const key of textFields) {
    const value = request[key];
    if ((value ?? "") === "" && later.has(key)) continue;
    if (value === undefined) note(key, "is required");
    // Possible in a record that another program has stored.
    else if (typeof value !== "string") note(key, "must be a string");
    else note(key, codeFields.has(key) ? wrongCode(value) : wrongText(value));
  }
  if (request.requestId) note("requestId", wrongRequestId(request.requestId));
  return violations;
}

function wrongType(type: InvestorType = InvestorType.UNSPECIFIED): string | undefined {
  if (type === InvestorType.UNSPECIFIED) return "is required";
  return typeNames.has(type) ? undefined : "must be individual or institution";
}

function wrongCode(code: string): string | undefined {
  return /^[a-z]{2,3}$/.test(code) ? undefined : "must be two or three lower-case letters (a-z)";
}

function wrongText(text: string): string | undefined {
  if (/\p{Cc}/u.test(text)) return "must not contain control characters";
  if (!text.isWellFormed()) return "must not contain unpaired surrogates";
  // A code point takes one or two units, so that only long text has to be counted.
  if (text.length > maxTextLength && Array.from(text).length > maxTextLength) {
    return `must be at most ${maxTextLength} characters long`;
  }
  return undefined;
}

function wrongRequestId(requestId: string): string | undefined {
  const id = requestId.toLowerCase();
  const isAllowed = isUuid(id) && id !== nilUuid && id !== maxUuid;
  return isAllowed ? undefined : "must be a UUID, neither nil nor max";
}

/**
 * Checks a record that a store returned.
 *
 * @throws {Error} it is not a valid record: another program, or a later version, wrote it
 */
export function checkStored(investor: Investor): void {
  const { id, type } = investor;
  if (typeNames.has(type) && textFields.every((field) => typeof investor[field] === "string"))
    return;
  throw new Error(`the data stored under the id ${id} is not a record`);
}

/** The most bytes that a record takes in a list on the wire. */
export function maxSerialisedSize(investor: Investor): number {
  return textFields.reduce(
    (size, key) => size + textOverhead + Buffer.byteLength(investor[key]),
    recordOverhead,
  );
}
