import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    testTimeout: 60_000,
    hookTimeout: 60_000,
    // A slow machine takes longer to get there.
    expect: { poll: { timeout: 30_000, interval: 20 } },
    // The tests start processes and databases of their own; more at once only get slower.
    maxWorkers: 2,
  },
});
