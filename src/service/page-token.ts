import { uuidFromHex, uuidToBytes } from "../uuid.ts";

/** The first byte of a token; an id follows. */
const version = 1;
const length = 1 + 16;

/** The token of the page that begins after this id; opaque, and safe in a URL. */
export function encodePageToken(after: string): string {
  return Buffer.concat([Buffer.of(version), uuidToBytes(after)]).toString("base64url");
}

/** The id that a token stands for, or undefined if it is not one of ours. */
export function decodePageToken(token: string): string | undefined {
  const bytes = Buffer.from(token, "base64url");
  // Decoding ignores what it does not understand, so that only the way back proves a token.
  const isOurs =
    bytes.length === length && bytes[0] === version && bytes.toString("base64url") === token;
  if (!isOurs) return undefined;
  return uuidFromHex(bytes.toString("hex", 1));
}
