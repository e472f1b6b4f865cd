import type { ListInvestorsRequest } from "../../gen/investor/v1/investor_pb.js";
import { uuidFromHex, uuidToBytes } from "./ids.ts";
import type { Violation } from "./investor.ts";

const defaultPageSize = 100;
const maxPageSize = 1_000;

/** The most bytes of a page's records: 1 MiB less room for the next page's token. */
export const maxPageBytes = 1024 * 1024 - 64;

/** A range of records, ordered by id. */
export interface Range {
  /** Starts after this id; from the beginning if absent. */
  after?: string | undefined;
  /** The most records; at least 1. */
  limit: number;
}

/** The range that a valid request asks for. */
export function toRange({ pageSize, pageToken }: ListInvestorsRequest): Range {
  const limit = Math.min(pageSize || defaultPageSize, maxPageSize);
  return { after: decodePageToken(pageToken), limit };
}

/** All rules that a list request breaks, in the order of its fields. */
export function findListViolations({ pageSize, pageToken }: ListInvestorsRequest): Violation[] {
  const violations: Violation[] = [];
  if (pageSize < 0) violations.push({ in: "body", key: "pageSize", rule: "must not be negative" });
  if (pageToken !== "" && decodePageToken(pageToken) === undefined) {
    violations.push({ in: "body", key: "pageToken", rule: "is not a token of this service" });
  }
  return violations;
}

/** The first byte of a page token; the 16 of an id follow. */
const tokenVersion = 1;

/** The token of the page that begins after this id; opaque, and safe in a URL. */
export function encodePageToken(after: string): string {
  return Buffer.concat([Buffer.of(tokenVersion), uuidToBytes(after)]).toString("base64url");
}

/** The id in a page token, or undefined if it is not one of ours. */
function decodePageToken(token: string): string | undefined {
  const bytes = Buffer.from(token, "base64url");
  // Decoding ignores invalid characters, so only encoding again proves a token.
  const isOurs =
    bytes.length === 17 && bytes[0] === tokenVersion && bytes.toString("base64url") === token;
  if (!isOurs) return undefined;
  return uuidFromHex(bytes.toString("hex", 1));
}
