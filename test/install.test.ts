/** What README's first command does where npm or the machine lacks something. */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import { copyClone, root } from "./support/clone.ts";
import { temporaryFolder } from "./support/folder.ts";
import { freePorts, runGroup, untilWritten } from "./support/service.ts";
import { needs } from "./support/tools.ts";

it("npm start builds what it starts, though a file has npm run no scripts", async () => {
  const folder = temporaryFolder();
  copyClone(folder);
  writeFileSync(join(folder, ".npmrc"), "ignore-scripts=true\n");
  const env = { PATH: process.env.PATH, ...freePorts };
  const service = runGroup("npm", ["start"], { cwd: folder, env });
  await untilWritten(service, "serving");
  expect(service.output()).toContain("serving sqlite:");
});

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
