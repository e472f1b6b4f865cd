import { create, type DescMessage, type Message, toBinary } from "@bufbuild/protobuf";
import { WireType } from "@bufbuild/protobuf/wire";
import {
  type Investor,
  InvestorSchema,
  type ListInvestorsResponse,
  ListInvestorsResponseSchema,
} from "../../gen/investor/v1/investor_pb.js";
import { maxRecordBytes, maxTextLength } from "../investor/investor.ts";

/** Room for a valid record while its last text is assumed to take three bytes per UTF-16 unit. */
const maxBytes = maxRecordBytes + 3 * 2 * maxTextLength;

/** More than the tag and length of a record in a list take. */
const maxPrefixBytes = 6;

/**
 * Creates an encoder with the same output as toBinary(), which allocates an array for each text of
 * a record. The records have one of our types. The bytes are valid until the next message is encoded.
 */
export function createEncoder(): (schema: DescMessage, message: Message) => Uint8Array {
  const encodeInvestor = createInvestorEncoder();
  let memory = Buffer.alloc(4 * maxBytes);

  function append(bytes: Uint8Array, end: number): number {
    const room = end + bytes.length + maxPrefixBytes;
    if (room > memory.length) memory = Buffer.concat([memory], 2 * room);
    memory.set(bytes, end);
    return end + bytes.length;
  }

  function encodePage({ investors, nextPageToken }: ListInvestorsResponse): Uint8Array {
    let end = 0;
    for (const investor of investors) {
      const record = encodeInvestor(investor);
      memory[end] =
        (ListInvestorsResponseSchema.field.investors.number << 3) | WireType.LengthDelimited;
      end = append(record, writeLength(memory, record.length, end + 1));
    }
    const rest = create(ListInvestorsResponseSchema, { nextPageToken });
    end = append(toBinary(ListInvestorsResponseSchema, rest), end);
    return memory.subarray(0, end);
  }

  return (schema, message) => {
    if (schema === InvestorSchema) return encodeInvestor(message as Investor);
    if (schema === ListInvestorsResponseSchema) return encodePage(message as ListInvestorsResponse);
    return toBinary(schema, message);
  };
}

/** Writes a varint; returns its end. */
function writeLength(memory: Uint8Array, length: number, start: number): number {
  let at = start;
  let rest = length;
  for (; rest > 0x7f; rest >>>= 7) {
    memory[at] = (rest & 0x7f) | 0x80;
    at += 1;
  }
  memory[at] = rest;
  return at + 1;
}

function createInvestorEncoder(): (investor: Investor) => Uint8Array {
  const memory = Buffer.alloc(maxBytes);
  const fields = InvestorSchema.fields.map(({ number, localName }) => ({
    number,
    name: localName as Exclude<keyof Investor, "$typeName" | "$unknown">,
  }));

  /** Writes a text after its length; returns its end. */
  function writeText(text: string, start: number): number {
    const length = memory.write(text, start + 1);
    if (length < 0x80) {
      memory[start] = length;
      return start + 1 + length;
    }
    const at = start + (length < 0x4000 ? 2 : 3);
    memory.copyWithin(at, start + 1, start + 1 + length);
    return writeLength(memory, length, start) + length;
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
      // Another program may have stored an overlong text, and the tag of a later field can be longer.
      if (number > 15 || end + 3 * value.length + 4 > maxBytes)
        return toBinary(InvestorSchema, investor);
      memory[end] = (number << 3) | WireType.LengthDelimited;
      end = writeText(value, end + 1);
    }
    return memory.subarray(0, end);
  };
}
