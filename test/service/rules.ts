import type { MessageInitShape } from "@bufbuild/protobuf";
import { v1, v4, v7 } from "uuid";
import {
  type CreateInvestorRequestSchema,
  InvestorType,
} from "../../gen/investor/v1/investor_pb.js";
import { maxTextLength } from "../../src/investor/investor.ts";

type Change = MessageInitShape<typeof CreateInvestorRequestSchema>;
type Field = keyof typeof CreateInvestorRequestSchema.field;

/** Changes of a valid create that break one rule, each with the field that is wrong. */
export const refusedChanges: [Field, Change][] = [
  ["type", { type: InvestorType.UNSPECIFIED }],
  ["type", { type: 3 as InvestorType }],
  ["type", { type: -1 as InvestorType }],
  ["firstName", { firstName: "x".repeat(maxTextLength + 1) }],
  ["middleName", { middleName: "\u{1F600}".repeat(maxTextLength + 1) }],
  ["lastName", { lastName: "a\u0000" }],
  ["addressLine1", { addressLine1: "line\nbreak" }],
  ["addressLine2", { addressLine2: "\u007f" }],
  ["city", { city: "\u0085" }],
  ["state", { state: "\u009f" }],
  ["state", { state: "\u001f" }],
  ["zipCode", { zipCode: "\t" }],
  ["country", { country: "" }],
  ["country", { country: "GB" }],
  ["country", { country: "gbrx" }],
  ["country", { country: "g" }],
  ["country", { country: "gb\n" }],
  ["language", { language: "" }],
  ["language", { language: "é1" }],
  ["requestId", { requestId: "not-a-uuid" }],
  ["requestId", { requestId: "00000000-0000-0000-0000-000000000000" }],
  ["requestId", { requestId: "FFFFFFFF-ffff-ffff-ffff-ffffffffffff" }],
  ["requestId", { requestId: `{${v4()}}` }],
  ["requestId", { requestId: v4().replaceAll("-", "") }],
  ["requestId", { requestId: `${v4()} ` }],
  ["requestId", { requestId: `${v4()}\n` }],
  ["requestId", { requestId: `urn:uuid:${v4()}` }],
];

/** Changes of a valid create that break none. */
export const acceptedChanges: Change[] = [
  { type: InvestorType.INDIVIDUAL },
  { type: InvestorType.INSTITUTION },
  { firstName: "" },
  { middleName: " " },
  { lastName: "  padded  " },
  { addressLine1: "\u{1F600}".repeat(maxTextLength) },
  { addressLine2: "x".repeat(maxTextLength) },
  { city: "e\u0301" },
  { city: "\u00e9" },
  { state: "\u202e<b>" },
  { zipCode: "\u00a0~\u2028\ufeff\ufffd\uffff" },
  { country: "gb" },
  { country: "gbr" },
  { language: "cy" },
  { language: "cym" },
  { requestId: "" },
  { requestId: v1() },
  { requestId: v4().toUpperCase() },
  { requestId: v7() },
  // Neither nil nor max, of no version at all.
  { requestId: "00000000-0000-0000-0000-000000000001" },
];
