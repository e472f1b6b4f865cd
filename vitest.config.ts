import { pbkdf2Sync } from "node:crypto";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { defineConfig } from "vitest/config";
import { toolPath } from "./test/support/clone.ts";
import { reportRun } from "./test/support/report.ts";

/** A project, of which a test or hook may take so many seconds at rest, and a wait for something. */
function project(
  name: string,
  files: { include: string[]; exclude: string[] },
  { test, wait, isolate }: { test: number; wait: number; isolate: boolean },
) {
  const [testMs = 0, waitMs = 0] = [test, wait].map((each) => Math.round(1_000 * each * slowness));
  return {
    extends: true as const,
    test: {
      ...{ name, ...files, isolate, testTimeout: testMs, hookTimeout: testMs },
      expect: { poll: { timeout: waitMs, interval: 20 } },
      provide: { testMs, waitMs },
    },
  };
}

/** How many times as long as at rest work takes, because of the machine or of what else runs on it. */
function measureSlowness(): number {
  const start = performance.now();
  pbkdf2Sync("", "", 500_000, 64, "sha512");
  return Math.max(1, (performance.now() - start) / 400);
}

/**
 * Has the stores in tests' own processes run their thread as it is built: Node.js takes twice the time
 * to start it from the sources.
 */
const builtThreads = {
  name: "built-threads",
  transform(code: string, path: string) {
    if (!path.endsWith("/src/store/sqlite/sqlite.ts")) return undefined;
    const url = /new URL\(`\.\/writer\$\{extname\(import\.meta\.url\)\}`, import\.meta\.url\)/;
    if (!url.test(code)) throw new Error(`${path} starts its thread in another way`);
    const built = 'new URL("writer.js", pathToFileURL(inject("bin")))';
    const imports = 'import { pathToFileURL } from "node:url"; import { inject } from "vitest";';
    return imports + code.replace(url, built);
  },
};

const slowness = measureSlowness();
const all = "test/**/*.test.ts";
const patient = "test/gate/**/*.test.ts";

export default defineConfig({
  plugins: [builtThreads],
  test: {
    projects: [
      // Its files share the modules of their worker, which takes a second a file to load otherwise.
      project(
        "quick",
        { include: [all], exclude: [patient] },
        { test: 60, wait: 20, isolate: false },
      ),
      project("gate", { include: [patient], exclude: [] }, { test: 480, wait: 120, isolate: true }),
    ],
    env: {
      // As npm sets it, also where vitest is started without npm.
      PATH: toolPath,
      // Each store compiles the sources of its thread anew otherwise.
      NODE_COMPILE_CACHE: join(tmpdir(), "node-compile-cache"),
    },
    globalSetup: "test/support/global-setup.ts",
    reporters: ["default", reportRun],
    // More than cores, since tests wait much for the processes and databases that they start.
    maxWorkers: 5,
  },
});
