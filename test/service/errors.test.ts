/** What errors say in words; docs.test.ts has their codes, statuses and whether to repeat the call. */
import { describe, expect, it } from "vitest";
import { invalidFields } from "../../src/failures.ts";
import type { Violation } from "../../src/investor/investor.ts";
import { toConnectError } from "../../src/protocols/connect-error.ts";
import { failureOf } from "../support/errors.ts";
import { failures, secret } from "./failures.ts";

describe("every error", () => {
  it("tells its reason and domain, keeps its cause to itself, and is well-formed", async () => {
    const all = Object.entries(failures).flatMap(([reason, errors]) =>
      errors.map((error) => ({ reason, error })),
    );
    for (const { reason, error } of all) {
      const told = await failureOf(Promise.reject(toConnectError(error)));
      expect(told).toMatchObject({ reason, domain: "investor-records" });
      expect(JSON.stringify(told)).not.toContain(secret);
      for (const text of [told.message, ...Object.keys(told.violations)]) {
        expect(text.isWellFormed()).toBe(true);
      }
    }
  });

  it("names a field that breaks a rule with the rule, and the others", async () => {
    const messageOf = async (...violations: Violation[]) =>
      (await failureOf(Promise.reject(toConnectError(invalidFields(violations))))).message;
    const city = { in: "body", key: "city", rule: "is required" } as const;
    expect(await messageOf(city)).toBe("city is required");
    const country = {
      ...({ in: "body", key: "country" } as const),
      rule: "must be two or three lower-case letters (a-z)",
    };
    const zipCode = { in: "body", key: "zipCode", rule: "is required" } as const;
    expect(await messageOf(country, zipCode, city)).toBe(
      "country must be two or three lower-case letters (a-z); also invalid: zip_code, city",
    );
  });

  it("tells by which scheme to authenticate, and what is lacking (RFC 6750)", () => {
    const challenges = (["CREDENTIALS_MISSING", "CREDENTIALS_INVALID", "SCOPE_MISSING"] as const)
      .flatMap((reason) => failures[reason])
      .map(({ headers }) => headers["www-authenticate"]);
    expect(challenges).toEqual([
      'Bearer realm="investor-records"',
      'Bearer realm="investor-records", error="invalid_token"',
      'Bearer realm="investor-records", error="insufficient_scope", scope="investors:read"',
    ]);
  });
});
