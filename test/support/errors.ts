import { Code, ConnectError } from "@connectrpc/connect";
import { expect } from "vitest";
import {
  BadRequestSchema,
  ErrorInfoSchema,
  RetryInfoSchema,
} from "../../gen/google/rpc/error_details_pb.js";
import { Failure } from "../../src/failures.ts";
import { toConnectError } from "../../src/protocols/connect-error.ts";

/** What a client learns from a call that must fail. */
export async function failureOf(call: Promise<unknown>) {
  const error = await call.then(
    () => {
      throw new Error("the call succeeded");
    },
    (reason) => ConnectError.from(reason instanceof Failure ? toConnectError(reason) : reason),
  );
  const [info] = error.findDetails(ErrorInfoSchema);
  if (info !== undefined) expect(info.domain).toBe("investor-records");
  const violations = error
    .findDetails(BadRequestSchema)
    .flatMap(({ fieldViolations }) => fieldViolations)
    .map(({ field, description }): [string, string] => [field, description]);
  return {
    code: Code[error.code],
    reason: info?.reason,
    metadata: info?.metadata,
    /** The descriptions of the violations by field. */
    violations: Object.fromEntries(violations),
    hasRetryDelay: error.findDetails(RetryInfoSchema).length > 0,
    message: error.rawMessage,
  };
}
