import { create, toBinary } from "@bufbuild/protobuf";
import { v7 } from "uuid";
import { expect, it } from "vitest";
import {
  InvestorSchema,
  InvestorType,
  ListInvestorsResponseSchema,
} from "../gen/investor/v1/investor_pb.js";
import { maxTextLength, textFields } from "../src/investor/investor.ts";
import { createEncoder } from "../src/protocols/investor-binary.ts";

it.each([
  ["none", ""],
  ["one character", "é"],
  ["127 bytes, whose length is one byte", "x".repeat(127)],
  ["128 bytes, whose length is two", "é".repeat(64)],
  ["the longest that is valid", "\u{1F600}".repeat(maxTextLength)],
  ["an unpaired surrogate", "a\ud800"],
  ["16,383 bytes, whose length is two", "x".repeat(16_383)],
  ["16,384 bytes, whose length is three", "é".repeat(8_192)],
  ["more than is valid", "x".repeat(100_000)],
])("a record and a page have the same bytes as by protobuf-es, with texts of %s", (_, text) => {
  const encode = createEncoder();
  for (const fields of [textFields, textFields.slice(0, 1), []]) {
    const texts = Object.fromEntries(fields.map((name) => [name, text]));
    const investor = create(InvestorSchema, { id: v7(), type: InvestorType.INSTITUTION, ...texts });
    expect(toBinary(InvestorSchema, investor)).toEqual(
      Uint8Array.from(encode(InvestorSchema, investor)),
    );
    for (const nextPageToken of ["", "token"]) {
      // More than the encoder's memory has room for at first.
      const investors = Array(text.length > 10_000 ? 2 : 100).fill(investor);
      const page = create(ListInvestorsResponseSchema, { investors, nextPageToken });
      const expected = toBinary(ListInvestorsResponseSchema, page);
      expect(Buffer.compare(encode(ListInvestorsResponseSchema, page), expected)).toBe(0);
    }
  }
});
