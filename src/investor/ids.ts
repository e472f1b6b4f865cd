import { hash } from "node:crypto";

/** The first and the last of all UUIDs (RFC 9562, 5.9 and 5.10). */
export const nilUuid = "00000000-0000-0000-0000-000000000000";
export const maxUuid = "ffffffff-ffff-ffff-ffff-ffffffffffff";

/** Whether the text is a UUID in canonical form, of any version and in any case (RFC 9562). */
export function isUuid(text: string): boolean {
  return /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i.test(text);
}

/** The 16 bytes of a UUID in canonical text. */
export function uuidToBytes(uuid: string): Buffer {
  return Buffer.from(uuid.replaceAll("-", ""), "hex");
}

/** The canonical text of a UUID, from its 32 hexadecimal digits in lower case. */
export function uuidFromHex(hex: string): string {
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20)}`;
}

/** Separates these hashes from any other use of the same input. */
const derivationLabel = "investor-records/request-id/v1";

const version7Pattern = /^.{14}7.{4}[89ab]/i;

/**
 * The id of the record that a caller creates with a request id. It depends on nothing else, so that
 * a replay meets the same key on any server and at any time.
 *
 * It is a UUIDv8 made from a SHA-256 or, for a UUIDv7 as request id, a UUIDv7 of the same time.
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
