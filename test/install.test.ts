/** What README's first command does where npm or the machine lacks something. */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import { copyClone, root } from "./support/clone.ts";
import { temporaryFolder } from "./support/folder.ts";
import { freePorts, runGroup, untilWritten } from "./support/service.ts";
import { needs } from "./support/tools.ts";

/** Runs `npm start` in a clone whose packages are installed. */
function npmStart(env: NodeJS.ProcessEnv = {}, folder = temporaryFolder()) {
  copyClone(folder);
  const { PATH } = process.env;
  return runGroup("npm", ["start"], { cwd: folder, env: { PATH, ...freePorts, ...env } });
}

it.each([
  ["true", ""],
  [undefined, "ignore-scripts=true\n"],
])(
  "npm start builds what it starts, ignore-scripts=%s in the environment, or %j in a file",
  async (value, file) => {
    const folder = temporaryFolder();
    writeFileSync(join(folder, ".npmrc"), file);
    const env = value ? { npm_config_ignore_scripts: value } : {};
    const service = npmStart(env, folder);
    await untilWritten(service, "serving");
    expect(service.output()).toContain("serving sqlite:");
  },
);

it("npm start says in one line what Node.js lacks without libatomic", needs("Linux"), async () => {
  const folder = temporaryFolder();
  writeFileSync(join(folder, "libatomic.so.1"), "");
  // As npm runs it, which may need the same library itself.
  const script = JSON.parse(readFileSync(join(root, "package.json"), "utf8")).scripts.start;
  const env = { PATH: process.env.PATH, LD_LIBRARY_PATH: folder };
  const { exited, output } = runGroup("sh", ["-c", script], { cwd: root, env });
  expect(await exited).toBe(1);
  expect(output()).toBe(
    "error: Node.js needs libatomic.so.1: install libatomic1 (Debian, Ubuntu) or libatomic (Fedora, RHEL)\n",
  );
});
