import { create } from "@bufbuild/protobuf";
import { Binary } from "mongodb";
import { type Investor, InvestorSchema, InvestorType } from "../../gen/investor/v1/investor_pb.js";
import { type TextField, textFields, typeNames, typesByName } from "../investor.ts";
import { uuidFromHex, uuidToBytes } from "../uuid.ts";

/** The collection of the records. */
export const collectionName = "investors";

/** A record as the collection holds it. */
export type InvestorDocument = { _id: Binary; type: string } & Pick<Investor, TextField>;

/** What to read of a document. */
export const projection = Object.fromEntries(["type", ...textFields].map((field) => [field, 1]));

/** The key of a record: its id as a UUID (BSON binary of subtype 4). */
export function toKey(id: string): Binary {
  return new Binary(uuidToBytes(id), Binary.SUBTYPE_UUID);
}

/** The document of a record. */
export function toDocument(investor: Investor): InvestorDocument {
  const type = typeNames.get(investor.type) ?? "";
  const document = { _id: toKey(investor.id), type } as InvestorDocument;
  for (const field of textFields) document[field] = investor[field];
  return document;
}

/** The record of a document. */
export function fromDocument(document: InvestorDocument): Investor {
  const investor = create(InvestorSchema);
  investor.id = uuidFromHex(document._id.toString("hex"));
  investor.type = typesByName.get(document.type) ?? InvestorType.UNSPECIFIED;
  for (const field of textFields) investor[field] = document[field];
  return investor;
}
