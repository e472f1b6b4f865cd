import { DryMongoBinary } from "mongodb-memory-server-core";
import { expect, it, vi } from "vitest";
import { readPage } from "./pages.ts";

it("the tests download the MongoDB that the pages name, unless told otherwise", () => {
  vi.stubEnv("MONGOMS_VERSION", undefined);
  const { version } = DryMongoBinary.getEnsuredOptions();
  expect(readPage("CONTRIBUTING.md")).toContain(`download MongoDB ${version};`);
  expect(readPage("docs/operation.md")).toContain(`Tested with ${version} only`);
  vi.stubEnv("MONGOMS_VERSION", "7.0.1");
  expect(DryMongoBinary.getEnsuredOptions().version).toBe("7.0.1");
});
