import { defineConfig } from "vitest/config";
import { reportSkipped } from "./test/support/skipped.ts";

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    globalSetup: "test/support/global-setup.ts",
    reporters: ["default", reportSkipped],
    // Only what hangs ever gets there, also on a machine that does much else.
    testTimeout: 1_800_000,
    hookTimeout: 1_800_000,
    expect: { poll: { timeout: 500_000, interval: 20 } },
    // The tests start processes and databases of their own; more at once only get slower.
    maxWorkers: 3,
  },
});
