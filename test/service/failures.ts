import { v7 } from "uuid";
import {
  credentialsInvalid,
  credentialsMissing,
  deadlineExceeded,
  type Failure,
  internal,
  interrupted,
  invalidFields,
  investorNotFound,
  issuerUnavailable,
  malformedRequest,
  messageTooLarge,
  outcomeUnknown,
  outcomeUnknownFor,
  overloaded,
  type Reason,
  requestIdReused,
  scopeMissing,
  storeUnavailable,
} from "../../src/failures.ts";

const cause = new Error("the cause");
const tooLate = deadlineExceeded("it is late");

/** The errors of each reason, as the service makes them. */
export const failures: Record<Reason, Failure[]> = {
  INVALID_FIELDS: [invalidFields([{ in: "body", key: "city", rule: "is wrong" }])],
  MALFORMED_REQUEST: [malformedRequest(cause), malformedRequest()],
  INVESTOR_NOT_FOUND: [investorNotFound(v7()), investorNotFound(undefined)],
  REQUEST_ID_REUSED: [requestIdReused()],
  MESSAGE_TOO_LARGE: [messageTooLarge(65_536)],
  CREDENTIALS_MISSING: [credentialsMissing("a token")],
  CREDENTIALS_INVALID: [credentialsInvalid("a token", cause)],
  SCOPE_MISSING: [scopeMissing("investors:read")],
  ISSUER_UNAVAILABLE: [issuerUnavailable(cause)],
  OVERLOADED: [overloaded("calls in flight")],
  STORE_UNAVAILABLE: [storeUnavailable(cause)],
  OUTCOME_UNKNOWN: [outcomeUnknown(cause), outcomeUnknownFor(v7(), cause)],
  DEADLINE_EXCEEDED: [interrupted(tooLate, "nothing was written")],
  CANCELLED: [interrupted(cause, "nothing was written")],
  INTERNAL: [internal("0123456789abcdef", cause)],
};
