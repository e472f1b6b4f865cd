import { hash } from "node:crypto";

/** The first byte of a token, which tells how to read the others. */
const version = 1;
const idLength = 16;
const checkLength = 4;

/** The token of the page that begins behind this id; opaque, and safe in a URL. */
export function encodePageToken(after: string): string {
  const position = Buffer.from(after.replaceAll("-", ""), "hex");
  const body = Buffer.concat([Buffer.of(version), position]);
  return Buffer.concat([body, check(body)]).toString("base64url");
}

/** The id that a token stands for, or undefined if it is not one of ours. */
export function decodePageToken(token: string): string | undefined {
  const bytes = Buffer.from(token, "base64url");
  const body = bytes.subarray(0, 1 + idLength);
  const isOurs =
    bytes.length === 1 + idLength + checkLength &&
    bytes[0] === version &&
    bytes.subarray(1 + idLength).equals(check(body)) &&
    bytes.toString("base64url") === token;
  if (!isOurs) return undefined;
  const hex = body.toString("hex", 1);
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}

/** Tells a token from other text of its length; it keeps nothing secret. */
function check(body: Buffer): Buffer {
  return hash("sha256", body, "buffer").subarray(0, checkLength);
}
