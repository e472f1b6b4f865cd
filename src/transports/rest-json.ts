import type { CreateInvestorRequest } from "../../gen/investor/v1/investor_pb.js";
import { malformedRequest } from "../service/errors.ts";
import { fromMembers } from "../service/plain-json.ts";

/**
 * Reads the body of a create: one JSON object of the eleven members.
 *
 * @param requestId the value of the header Idempotency-Key, quoted or bare
 * @throws {ConnectError} MALFORMED_REQUEST, if it is no JSON object; INVALID_FIELDS, with
 *   every rule that it breaks, if a member is none of the eleven or not a string
 */
export function fromJson(body: Uint8Array, requestId: string | undefined): CreateInvestorRequest {
  return fromMembers(parseObject(body), requestId?.replace(/^"(.*)"$/, "$1"));
}

function parseObject(body: Uint8Array): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(body));
  } catch (error) {
    throw malformedRequest(error);
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw malformedRequest();
  return value as Record<string, unknown>;
}
