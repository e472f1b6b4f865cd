import { create, type MessageInitShape, ScalarType } from "@bufbuild/protobuf";
import { v4, v7 } from "uuid";
import {
  CreateInvestorRequestSchema,
  type Investor,
  InvestorSchema,
  InvestorType,
} from "../../gen/investor/v1/investor_pb.js";
import { maxTextLength } from "../../src/investor/investor.ts";

/** A valid request whose content differs from any other's. */
export function aCreate(
  changes: MessageInitShape<typeof CreateInvestorRequestSchema> = {},
): MessageInitShape<typeof CreateInvestorRequestSchema> {
  return { ...aNew(), ...changes };
}

/** A record as a store takes it. */
export function anInvestor(changes: MessageInitShape<typeof InvestorSchema> = {}): Investor {
  return create(InvestorSchema, { ...aNew(), id: v7(), ...changes });
}

/** A text for each field of the contract that takes one: each another, and right for a code, too. */
export const everyText = Object.fromEntries(
  CreateInvestorRequestSchema.fields
    .filter(({ scalar, localName }) => scalar === ScalarType.STRING && localName !== "requestId")
    .map(({ localName }, i) => [localName, `aa${String.fromCharCode(97 + i)}`]),
);

/** The texts of the largest record: 130 of them fill a page. */
export const largest = textOfAll("\u{1F600}".repeat(maxTextLength));

/** The same text in all fields that take any. */
export function textOfAll(text: string) {
  const names = { firstName: text, middleName: text, lastName: text, city: text, state: text };
  return { ...names, addressLine1: text, addressLine2: text, zipCode: text };
}

/** The content of a record in plain JSON. */
export const institution = {
  type: "institution",
  firstName: "",
  middleName: "",
  lastName: "Example Capital",
  addressLine1: "1 Main Street",
  addressLine2: "",
  city: "Springfield",
  state: "IL",
  zipCode: "62701",
  country: "us",
  language: "en",
};

/** The content of a new record, which differs from any other's. */
export function aNew() {
  return {
    type: InvestorType.INDIVIDUAL as const,
    firstName: `Ada ${v4()}`,
    middleName: "",
    lastName: "Lovelace",
    addressLine1: "12 St James's Square",
    addressLine2: "2. Stock, links",
    city: "Łódź",
    state: "",
    zipCode: "SW1Y 4JH",
    country: "gb",
    language: "en",
  };
}
