import { create } from "@bufbuild/protobuf";
import { Binary, type Document } from "mongodb";
import { type Investor, InvestorSchema } from "../../../gen/investor/v1/investor_pb.js";
import { maxUuid, nilUuid, uuidFromHex, uuidToBytes } from "../../investor/ids.ts";
import { laterFields, textFields, typeNamed, typeNames } from "../../investor/investor.ts";
import type { Range } from "../../investor/paging.ts";

export const collectionName = "investors";

/** Selects the fields of a record. */
export const projection = Object.fromEntries(["type", ...textFields].map((field) => [field, 1]));

/** The key of a record: its id as a UUID (BSON binary of subtype 4). */
export function toKey(id: string): Binary {
  return new Binary(uuidToBytes(id), Binary.SUBTYPE_UUID);
}

/** A record as stored in the collection. */
export function toDocument(investor: Investor): Document {
  const type = typeNames.get(investor.type) ?? "";
  const document: Document = { _id: toKey(investor.id), type };
  for (const field of textFields) document[field] = investor[field];
  return document;
}

/** What stands for the fields that documents of an older version lack. */
const lacking: Document = Object.fromEntries(laterFields.map((field) => [field, ""]));

export function fromDocument(document: Document): Investor {
  const investor = create(InvestorSchema);
  investor.id = uuidFromHex(document._id.toString("hex"));
  investor.type = typeNamed(document.type);
  for (const field of textFields) investor[field] = document[field] ?? lacking[field];
  return investor;
}

/** A query, in the terms of MongoDB's command `find`. */
export interface Query {
  filter: Document;
  sort?: Document;
  limit: number;
}

const firstKey = toKey(nilUuid);
const lastKey = toKey(maxUuid);

/** The query for a range of records. Documents with keys of other types are not records. */
export function queryOfRange({ after, limit }: Range): Query {
  const begin = after === undefined ? { $gte: firstKey } : { $gt: toKey(after) };
  return { filter: { _id: { ...begin, $lte: lastKey } }, sort: { _id: 1 }, limit };
}

/** The query for records with these ids. */
export function queryOf(ids: string[]): Query {
  const keys = Array.from(new Set(ids), toKey);
  // The server has a faster path for one key than for a set of one.
  return { filter: { _id: keys.length === 1 ? keys[0] : { $in: keys } }, limit: keys.length };
}
