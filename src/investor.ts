import { type Investor, InvestorType } from "../gen/investor/v1/investor_pb.js";

/** The fields of a record that hold text, besides its id, in the order of the contract. */
export const textFields = [
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

/** The types of investor by the names that they have outside of protobuf. */
export const typesByName: ReadonlyMap<string, InvestorType> = new Map([
  ["individual", InvestorType.INDIVIDUAL],
  ["institution", InvestorType.INSTITUTION],
]);

/** The names by type. */
export const typeNames: ReadonlyMap<InvestorType, string> = new Map(
  Array.from(typesByName, ([name, type]) => [type, name]),
);

/** The size of a record in bytes when serialised as protobuf, its own tag and length included. */
export function serialisedSize(investor: Investor): number {
  let size = stringSize(investor.id) + 2;
  for (const field of textFields) size += stringSize(investor[field]);
  return size + lengthOfVarint(size) + 1;
}

/** The size of a string field whose number is below 16 (https://protobuf.dev/programming-guides/encoding). */
function stringSize(text: string): number {
  if (text === "") return 0;
  const bytes = Buffer.byteLength(text);
  return 1 + lengthOfVarint(bytes) + bytes;
}

function lengthOfVarint(value: number): number {
  return value < 0x80 ? 1 : value < 0x4000 ? 2 : 3;
}
