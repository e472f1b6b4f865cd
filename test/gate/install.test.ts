/** README's first command as the oldest npm that it allows runs it, told to run no scripts. */
import { execFileSync } from "node:child_process";
import { cpSync } from "node:fs";
import { delimiter, join } from "node:path";
import { expect, it } from "vitest";
import { root } from "../support/clone.ts";
import { temporaryFolder } from "../support/folder.ts";
import { freePorts, runGroup, untilWritten } from "../support/service.ts";
import { needs, oldestNpm } from "../support/tools.ts";

const files = ["gen", "proto", "runtime", "src", ".npmrc", "package.json", "package-lock.json"];

it("npm ci && npm start serves, and leaves the Node.js to run it", needs("npm 10"), async () => {
  const folder = temporaryFolder();
  for (const name of [...files, "rolldown.config.ts", "tsconfig.json"]) {
    cpSync(join(root, name), join(folder, name), { recursive: true });
  }
  // Without the tools of this clone.
  const PATH = (process.env.PATH ?? "")
    .split(delimiter)
    .filter((each) => !each.includes("node_modules"))
    .join(delimiter);
  const env = { ...process.env, PATH, npm_config_ignore_scripts: "true" };
  const npm = ["exec", "--yes", "--prefer-offline", oldestNpm, "--"];
  execFileSync("npm", [...npm, "ci", "--prefer-offline"], { cwd: folder, env, stdio: "pipe" });
  const own = { ...env, ...freePorts };
  const service = runGroup("npm", [...npm, "start"], { cwd: folder, env: own });
  await untilWritten(service, "serving");
  expect(service.output()).toContain("serving sqlite:");
  const node = join(folder, "node_modules/.bin/node");
  expect(execFileSync(node, ["--version"], { encoding: "utf8" })).toBe(`${process.version}\n`);
});
