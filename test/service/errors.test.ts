import { describe, expect, it } from "vitest";
import { invalidFields, type Reason } from "../../src/errors.ts";
import type { Violation } from "../../src/investor/investor.ts";
import { failureOf, statusOf } from "../support/errors.ts";
import { failures, secret } from "./failures.ts";

/** The errors of errors.ts: reason, code, status by REST, whether to repeat the call. */
const table: [reason: Reason, code: string, status: number, hasRetryInfo: boolean][] = [
  ["INVALID_FIELDS", "InvalidArgument", 400, false],
  ["MALFORMED_REQUEST", "InvalidArgument", 400, false],
  ["INVESTOR_NOT_FOUND", "NotFound", 404, false],
  ["REQUEST_ID_REUSED", "AlreadyExists", 422, false],
  ["CREDENTIALS_MISSING", "Unauthenticated", 401, false],
  ["CREDENTIALS_INVALID", "Unauthenticated", 401, false],
  ["SCOPE_MISSING", "PermissionDenied", 403, false],
  ["OVERLOADED", "Unavailable", 503, true],
  ["STORE_UNAVAILABLE", "Unavailable", 503, true],
  ["ISSUER_UNAVAILABLE", "Unavailable", 503, true],
  ["OUTCOME_UNKNOWN", "Unavailable", 503, true],
  // Clients repeat what is UNAVAILABLE, which would store a second record.
  ["OUTCOME_UNKNOWN", "Unknown", 500, false],
  ["MESSAGE_TOO_LARGE", "ResourceExhausted", 413, false],
  ["DEADLINE_EXCEEDED", "DeadlineExceeded", 504, false],
  ["CANCELLED", "Canceled", 499, false],
  ["INTERNAL", "Internal", 500, false],
];

describe("every error", () => {
  it.each(Object.keys(failures) as Reason[])(
    "of %s tells its code, reason and domain",
    async (reason) => {
      const told = failures[reason].map(async (error) => {
        const failure = await failureOf(Promise.reject(error));
        expect(failure.domain).toBe("investor-records");
        return [failure.reason, failure.code, statusOf(error), failure.hasRetryDelay].join();
      });
      const rows = table.filter(([name]) => name === reason).map((row) => row.join());
      expect(new Set(await Promise.all(told))).toEqual(new Set(rows));
    },
  );

  it("keeps its cause to itself, and is well-formed", async () => {
    for (const error of Object.values(failures).flat()) {
      const failure = JSON.stringify(await failureOf(Promise.reject(error)));
      expect(failure).not.toContain(secret);
      expect(JSON.parse(failure).message.isWellFormed()).toBe(true);
      for (const field of Object.keys(JSON.parse(failure).violations)) {
        expect(field.isWellFormed()).toBe(true);
      }
    }
  });

  it("names a field that breaks a rule with the rule, and the others", async () => {
    const messageOf = async (...violations: Violation[]) =>
      (await failureOf(Promise.reject(invalidFields(violations)))).message;
    const city = { field: "city", description: "is required" };
    expect(await messageOf(city)).toBe("city is required");
    const country = {
      field: "country",
      description: "must be two or three lower-case letters (a-z)",
    };
    const zipCode = { field: "zip_code", description: "is required" };
    expect(await messageOf(country, zipCode, city)).toBe(
      "country must be two or three lower-case letters (a-z); also invalid: zip_code, city",
    );
  });

  it("tells by which scheme to authenticate, and what is lacking (RFC 6750)", () => {
    const challenges = (["CREDENTIALS_MISSING", "CREDENTIALS_INVALID", "SCOPE_MISSING"] as const)
      .flatMap((reason) => failures[reason])
      .map(({ metadata }) => metadata.get("www-authenticate"));
    expect(challenges).toEqual([
      'Bearer realm="investor-records"',
      'Bearer realm="investor-records", error="invalid_token"',
      'Bearer realm="investor-records", error="insufficient_scope", scope="investors:read"',
    ]);
  });
});
