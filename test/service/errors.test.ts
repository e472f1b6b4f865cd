/** What errors say in words; docs.test.ts has their codes, statuses and whether to repeat the call. */
import { describe, expect, it } from "vitest";
import { invalidFields } from "../../src/failures.ts";
import type { Violation } from "../../src/investor/investor.ts";
import { failureOf } from "../support/errors.ts";
import { failures, secret } from "./failures.ts";

describe("every error", () => {
  it("tells its reason and domain, keeps its cause to itself, and is well-formed", async () => {
    for (const error of Object.values(failures).flat()) {
      const told = await failureOf(Promise.reject(error));
      expect(told).toMatchObject({ reason: error.reason, domain: "investor-records" });
      expect(JSON.stringify(told)).not.toContain(secret);
      for (const text of [told.message, ...Object.keys(told.violations)]) {
        expect(text.isWellFormed()).toBe(true);
      }
    }
  });

  it("names a field that breaks a rule with the rule, and the others", async () => {
    const messageOf = async (...fields: string[]) => {
      const violations = fields.map((key): Violation => ({ in: "body", key, rule: "is required" }));
      return (await failureOf(Promise.reject(invalidFields(violations)))).message;
    };
    expect(await messageOf("city")).toBe("city is required");
    const several = await messageOf("country", "zipCode", "city");
    expect(several).toBe("country is required; also invalid: zip_code, city");
  });
});
