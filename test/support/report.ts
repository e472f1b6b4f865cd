import type { Reporter, TestCase } from "vitest/node";
import { waysToGet } from "./tools.ts";

/**
 * Names each test that fails at once, and says once, after all tests, how many passed, and were skipped
 * for lack of what, and how to get it.
 */
export const reportRun: Reporter = {
  onTestCaseResult(test) {
    if (test.result().state === "failed")
      console.log(`failed: ${test.module.relativeModuleId} > ${test.fullName}`);
  },
  onTestRunEnd(modules) {
    const tests = modules.flatMap(({ children }) => [...children.allTests()]);
    const count = (state: string) => tests.filter((test) => test.result().state === state).length;
    console.log(
      `${count("passed")} passed, ${count("failed")} failed, ${count("skipped")} skipped`,
    );
    const lacking = Map.groupBy(tests, lackOf);
    lacking.delete(undefined);
    if (lacking.size === 0) return;
    const lacks = [...lacking.values()].flat().length;
    console.log(`Skipped: ${lacks} of ${tests.length} tests, which need`);
    for (const [name = "", { length }] of [...lacking].toSorted(
      ([, a], [, b]) => b.length - a.length,
    )) {
      console.log(
        `${String(length).padStart(6)}  ${[name, waysToGet[name] ?? []].flat().join(": ")}`,
      );
    }
  },
};

/** What a test lacks that was skipped; undefined if nothing is missing. */
function lackOf(test: TestCase): string | undefined {
  const result = test.result();
  if (result.state !== "skipped") return undefined;
  return test.meta().lacks ?? result.note;
}
