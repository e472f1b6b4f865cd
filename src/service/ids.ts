import { hash } from "node:crypto";

/** A domain label keeps these hashes apart from any other use of the same input. */
const derivationLabel = "investor-records/request-id/v1";

const version7Pattern = /^.{14}7.{4}[89ab]/i;

/** Whether the text is a UUID in canonical form, of any version and in any case (RFC 9562). */
export function isUuid(text: string): boolean {
  return /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i.test(text);
}

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
  const tail = `${variant}${hex.slice(18, 20)}-${hex.slice(20, 32)}`;
  return version7Pattern.test(key)
    ? `${key.slice(0, 13)}-7${hex.slice(13, 16)}-${tail}`
    : `${hex.slice(0, 8)}-${hex.slice(8, 12)}-8${hex.slice(13, 16)}-${tail}`;
}
