import { hash } from "node:crypto";
import { uuidFromHex } from "../uuid.ts";

/** A domain label keeps these hashes apart from any other use of the same input. */
const derivationLabel = "investor-records/request-id/v1";

const version7Pattern = /^.{14}7.{4}[89ab]/i;

/**
 * The id of the record that a caller creates under a request id. It depends on nothing
 * else, so that a replay meets the same key on any server and at any time.
 *
 * The result is a UUIDv8 of a SHA-256; under a UUIDv7 it is a UUIDv7 of the same time.
 */
export function deriveId(principal: string, requestId: string): string {
  const key = requestId.toLowerCase();
  const digest = hash("sha256", `${derivationLabel}\0${key}\0${principal}`, "buffer");
  const hex = digest.toString("hex");
  const variant = ((digest.readUInt8(8) & 0x3f) | 0x80).toString(16);
  const isVersion7 = version7Pattern.test(key);
  const head = isVersion7 ? `${key.slice(0, 8)}${key.slice(9, 13)}7` : `${hex.slice(0, 12)}8`;
  return uuidFromHex(`${head}${hex.slice(13, 16)}${variant}${hex.slice(18, 32)}`);
}
