import { expect, it } from "vitest";
import { ConnectionUsage } from "../../src/http/usage.ts";

const mebibyte = 1024 * 1024;

it("lets go on what waits behind a reply that is waited for no more", () => {
  const usage = new ConnectionUsage({ kept: 0 });
  const going: string[] = [];
  usage.reserve(3 * mebibyte, () => going.push("first"));
  const giveUp = usage.reserve(2 * mebibyte, () => going.push("large"));
  usage.reserve(mebibyte, () => going.push("small"));
  expect(going).toEqual(["first"]);
  giveUp();
  expect(going).toEqual(["first", "small"]);
});
