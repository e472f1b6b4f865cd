import { toBinary } from "@bufbuild/protobuf";
import { expect, it } from "vitest";
import { InvestorSchema, InvestorType } from "../gen/investor/v1/investor_pb.js";
import { serialise, textFields } from "../src/investor.ts";
import { createRandom, seedOf } from "./support/random.ts";
import { anInvestor } from "./support/records.ts";

it("serialises records as the library does", () => {
  const random = createRandom(seedOf("serialises records as the library does"));
  for (let count = 0; count < 1_000; count += 1) {
    const { UNSPECIFIED, INDIVIDUAL, INSTITUTION } = InvestorType;
    const investor = anInvestor({ type: random.pick([UNSPECIFIED, INDIVIDUAL, INSTITUTION]) });
    for (const field of textFields) {
      investor[field] = random.pick(["", "a", "ł", "字", "😀"]).repeat(random.int(0, 256));
    }
    const bytes = toBinary(InvestorSchema, investor);
    expect(Buffer.from(serialise(investor)).equals(bytes), JSON.stringify(investor)).toBe(true);
  }
});

it("leaves nothing of a record that cannot be serialised in the next one", () => {
  expect(() => serialise(anInvestor({ type: 1.5 as InvestorType }))).toThrow("int32");
  const investor = anInvestor();
  expect(Buffer.from(serialise(investor))).toEqual(Buffer.from(toBinary(InvestorSchema, investor)));
});
