import { create, toBinary } from "@bufbuild/protobuf";
import { v7 } from "uuid";
import { expect, it } from "vitest";
import { InvestorSchema, InvestorType } from "../gen/investor/v1/investor_pb.js";
import { textFields } from "../src/investor/investor.ts";
import { createInvestorEncoder } from "../src/protocols/investor-binary.ts";

it.each([
  ["none", ""],
  ["one character", "é"],
  ["127 bytes, whose length is one byte", "x".repeat(127)],
  ["128 bytes, whose length is two", "é".repeat(64)],
  ["the longest that is valid", "\u{1F600}".repeat(256)],
  ["an unpaired surrogate", "a\ud800"],
  ["more than is valid", "x".repeat(100_000)],
])("a record has the same bytes as by protobuf-es, with texts of %s", (_, text) => {
  const encode = createInvestorEncoder();
  for (const fields of [textFields, textFields.slice(0, 1), []]) {
    const texts = Object.fromEntries(fields.map((name) => [name, text]));
    const investor = create(InvestorSchema, { id: v7(), type: InvestorType.INSTITUTION, ...texts });
    expect(Buffer.from(encode(investor))).toEqual(Buffer.from(toBinary(InvestorSchema, investor)));
  }
});
