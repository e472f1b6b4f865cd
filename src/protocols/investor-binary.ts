import { toBinary } from "@bufbuild/protobuf";
import { WireType } from "@bufbuild/protobuf/wire";
import { type Investor, InvestorSchema } from "../../gen/investor/v1/investor_pb.js";

/** More than a valid record takes. */
const maxBytes = 16 * 1024;

/**
 * Creates an encoder of records: its bytes are those of toBinary(), which allocates memory off V8's
 * heap for each. They are valid until the next record is encoded.
 */
export function createInvestorEncoder(): (investor: Investor) => Uint8Array {
  const memory = Buffer.alloc(maxBytes);
  const fields = InvestorSchema.fields.map(({ number, localName }) => ({
    number,
    name: localName as Exclude<keyof Investor, "$typeName" | "$unknown">,
  }));

  /** Writes a text behind its length, a varint of one byte or two; returns where it ends. */
  function writeText(text: string, start: number): number {
    const length = memory.write(text, start + 1);
    if (length < 0x80) {
      memory[start] = length;
      return start + 1 + length;
    }
    memory.copyWithin(start + 2, start + 1, start + 1 + length);
    memory[start] = (length & 0x7f) | 0x80;
    memory[start + 1] = length >> 7;
    return start + 2 + length;
  }

  return (investor) => {
    let end = 0;
    for (const { number, name } of fields) {
      const value = investor[name];
      if (value === "" || value === 0) continue;
      if (typeof value === "number") {
        memory[end] = (number << 3) | WireType.Varint;
        memory[end + 1] = value;
        end += 2;
        continue;
      }
      // Another program may have stored what is longer than any valid text.
      if (end + 3 * value.length + 4 > maxBytes) return toBinary(InvestorSchema, investor);
      memory[end] = (number << 3) | WireType.LengthDelimited;
      end = writeText(value, end + 1);
    }
    return memory.subarray(0, end);
  };
}
