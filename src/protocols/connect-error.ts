import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { ConnectError } from "@connectrpc/connect";
import {
  BadRequestSchema,
  ErrorInfoSchema,
  RetryInfoSchema,
} from "../../gen/google/rpc/error_details_pb.js";
import {
  CreateInvestorRequestSchema,
  ListInvestorsRequestSchema,
} from "../../gen/investor/v1/investor_pb.js";
import { Failure } from "../failures.ts";

/** The domain of all reasons (google.rpc.ErrorInfo.domain). */
export const errorDomain = "investor-records";

/** A failure as gRPC, gRPC-Web and Connect write it, with details. One of {@link toFailure} is as it was. */
export function toConnectError(failure: Failure): ConnectError {
  const { message, code, reason, metadata, violations, headers, retryAfterMs, cause } = failure;
  if (reason === undefined && cause instanceof ConnectError) return cause;
  const fieldViolations = violations.map(({ key, rule }) => ({
    field: fieldNameOf(key),
    description: rule,
  }));
  const error = new ConnectError(describe(fieldViolations) ?? message, code, headers);
  if (reason !== undefined) {
    const value = { reason, domain: errorDomain, metadata };
    error.details.push({ desc: ErrorInfoSchema, value });
  }
  if (fieldViolations.length > 0) {
    error.details.push({ desc: BadRequestSchema, value: { fieldViolations } });
  }
  if (retryAfterMs !== undefined) {
    const value = { retryDelay: durationFromMs(retryAfterMs) };
    error.details.push({ desc: RetryInfoSchema, value });
  }
  return error;
}

/** The first broken rule, and where others are; many tools and logs show no details. */
function describe(all: { field: string; description: string }[]): string | undefined {
  const [first, ...others] = all;
  if (first === undefined) return undefined;
  const also = others.map(({ field }) => field).join(", ");
  return `${first.field} ${first.description}${also && `; also invalid: ${also}`}`;
}

/** An error of Connect's, which it throws itself, as a failure; any other as it is. */
export function toFailure(error: unknown): unknown {
  if (!(error instanceof ConnectError)) return error;
  return new Failure(error.rawMessage, { code: error.code, cause: error });
}

/** The name of a field in the protobuf contract. */
function fieldNameOf(key: string): string {
  const fields = [...CreateInvestorRequestSchema.fields, ...ListInvestorsRequestSchema.fields];
  return fields.find(({ jsonName }) => jsonName === key)?.name ?? key;
}
