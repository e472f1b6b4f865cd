import { Code } from "@connectrpc/connect";
import { describe, expect, it } from "vitest";
import { codes, malformedRequest, type Reason } from "../../src/service/errors.ts";
import { failureOf } from "../support/errors.ts";
import { failures, secret } from "./failures.ts";

describe("every error", () => {
  it.each(Object.keys(codes) as Reason[])(
    "of %s tells its code, reason and domain",
    async (reason) => {
      for (const error of failures[reason]) {
        const failure = await failureOf(Promise.reject(error));
        // Clients repeat what is UNAVAILABLE, which would store a second record.
        const isUnrepeatable = failure.message.includes("look its id up");
        const code = isUnrepeatable ? Code.Unknown : codes[reason];
        expect(failure).toMatchObject({ code: Code[code], reason, domain: "investor-records" });
        expect(failure.hasRetryDelay).toBe(code === Code.Unavailable);
      }
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

  it("repeats the id of a record, and no other text", () => {
    const [known, unknown] = failures.INVESTOR_NOT_FOUND;
    expect(known?.rawMessage).toBe(unknown?.rawMessage);
  });
});

describe("a malformed request", () => {
  it.each([
    [
      'cannot decode message investor.v1.CreateInvestorRequest from JSON: key "a" is unknown',
      'cannot decode message investor.v1.CreateInvestorRequest from JSON: key "a" is unknown',
    ],
    [
      "cannot decode field investor.v1.CreateInvestorRequest.city from JSON: Very Secret",
      "cannot decode field investor.v1.CreateInvestorRequest.city from JSON",
    ],
    ["Unexpected token 'V', \"Very Secret\"", "the request is not a valid message of this method"],
  ])("of which a decoder says %j is named without values", (said, told) => {
    expect(malformedRequest(new Error(said)).rawMessage).toBe(told);
  });
});
