import { spawnSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import { root } from "./support/clone.ts";
import { temporaryFolder } from "./support/folder.ts";

it("a run names a test that hangs, and what a skipped one lacks", () => {
  const folder = temporaryFolder();
  const vitest = join(root, "node_modules/vitest");
  writeFileSync(
    join(folder, "vitest.config.js"),
    `import { reportRun } from "${root}/test/support/report.ts";
    export default { test: { reporters: [reportRun], testTimeout: 200 } };`,
  );
  writeFileSync(
    join(folder, "some.test.js"),
    `import { it } from "${vitest}/dist/index.js";
    it("waits for ever", () => new Promise(() => {}));
    it("copies", { skip: true, meta: { lacks: "curl: the package curl" } }, () => {});`,
  );
  const args = [join(vitest, "vitest.mjs"), "run"];
  const { stdout, status } = spawnSync(process.execPath, args, { cwd: folder, encoding: "utf8" });
  expect(stdout).toContain("failed: some.test.js > waits for ever\n");
  expect(stdout).toMatch(/1 of 2 tests, which need\n +1 {2}curl: the package curl\n/);
  expect(status).toBe(1);
});
