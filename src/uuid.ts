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
