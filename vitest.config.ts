import { defineConfig } from "vitest/config";
import { reportSkipped } from "./test/support/skipped.ts";

const minute = 60_000;

/** A project: what hangs in it is stopped after some time. */
function project(name: string, include: string, exclude: string[], timeout: number) {
  return {
    extends: true as const,
    test: { name, include: [include], exclude, testTimeout: timeout, hookTimeout: timeout },
  };
}

export default defineConfig({
  test: {
    projects: [
      project("quick", "test/**/*.test.ts", ["test/gate/**"], 30 * minute),
      project("gate", "test/gate/**/*.test.ts", [], 30 * minute),
    ],
    globalSetup: "test/support/global-setup.ts",
    reporters: ["default", reportSkipped],
    expect: { poll: { timeout: 500_000, interval: 20 } },
    // The tests start processes and databases of their own; more at once only get slower.
    maxWorkers: 3,
  },
});
