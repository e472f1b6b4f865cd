import type { Reporter } from "vitest/node";

/**
 * Names each test that fails at once, and says once, after all tests, how many were skipped for lack of
 * what, and how to get it.
 */
export const reportRun: Reporter = {
  onTestCaseResult(test) {
    if (test.result().state === "failed")
      console.log(`failed: ${test.module.relativeModuleId} > ${test.fullName}`);
  },
  onTestRunEnd(modules) {
    const tests = modules.flatMap(({ children }) => [...children.allTests()]);
    const lacks = tests.flatMap((test) => test.meta().lacks ?? []);
    if (lacks.length > 0)
      console.log(`Skipped: ${lacks.length} of ${tests.length} tests, which need`);
    for (const [lack, { length }] of Map.groupBy(lacks, (each) => each))
      console.log(`${String(length).padStart(6)}  ${lack}`);
  },
};
