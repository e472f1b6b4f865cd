/** README's first command: as the oldest npm that it allows runs it, told to run no scripts; where it cannot work; its end. */
import { execFileSync } from "node:child_process";
import { cpSync, existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ConnectError } from "@connectrpc/connect";
import { expect, it } from "vitest";
import { foreignPath, root } from "../support/clone.ts";
import { temporaryFolder } from "../support/folder.ts";
import { aCreate } from "../support/records.ts";
import { anyPort, grpcClient, runGroup, untilWritten, waitFor } from "../support/service.ts";
import { needs, oldestNpm } from "../support/tools.ts";

const files = [
  ...["gen", "proto", "runtime", "src", ".npmrc", "package.json", "package-lock.json"],
  ...["rolldown.config.ts", "tsconfig.json"],
];

function copyFiles(folder: string): void {
  for (const name of files) cpSync(join(root, name), join(folder, name), { recursive: true });
}

it("npm ci && npm start serves, and leaves the Node.js to run it", needs("npm 10"), async () => {
  const folder = temporaryFolder();
  copyFiles(folder);
  const env = { ...process.env, PATH: foreignPath, npm_config_ignore_scripts: "true" };
  const npm = ["exec", "--yes", "--prefer-offline", oldestNpm, "--"];
  execFileSync("npm", [...npm, "ci", "--prefer-offline"], { cwd: folder, env, stdio: "pipe" });
  const own = { ...env, ...anyPort };
  const service = runGroup("npm", [...npm, "start"], { cwd: folder, env: own });
  await untilWritten(service, "serving");
  expect(service.output()).toContain("serving sqlite:");
  const node = join(folder, "node_modules/.bin/node");
  expect(execFileSync(node, ["--version"], { encoding: "utf8" })).toBe(`${process.version}\n`);
});

it("npm start names the command that installs a clone in somebody's workspace, in production", async () => {
  const folder = temporaryFolder();
  writeFileSync(join(folder, "package.json"), JSON.stringify({ workspaces: ["clone"] }));
  const cwd = join(folder, "clone");
  copyFiles(cwd);
  const env = { ...process.env, PATH: foreignPath, NODE_ENV: "production", ...anyPort };
  const refused = runGroup("npm", ["start"], { cwd, env });
  expect(await refused.exited).toBe(1);
  const [, command = ""] = /^error: .*: (npm ci .*)$/m.exec(refused.output()) ?? [];
  execFileSync("sh", ["-c", `${command} --prefer-offline`], { cwd, env, stdio: "pipe" });
  await untilWritten(runGroup("npm", ["start"], { cwd, env }), "serving");
});

it.each(["SIGINT", "SIGTERM"] as const)(
  "leaves no process behind and cuts no call under load, if npm start gets %s",
  async (signal) => {
    const { PATH } = process.env;
    const url = `sqlite:${temporaryFolder()}/a.db`;
    const env = { PATH, DATABASE_URL: url, ...anyPort };
    const { child, output, exited } = runGroup("npm", ["start"], { cwd: root, env });
    const serving = /"pid":(\d+).*serving .* http:\/\/[^ "]*:(\d+)/;
    const [, pid, port] = await waitFor(async () => serving.exec(output()) ?? undefined);
    let stored = 0;
    const callers = Array.from({ length: 16 }, async () => {
      const client = grpcClient({ port: Number(port) });
      for (;;) {
        try {
          await client.createInvestor(aCreate());
          stored += 1;
        } catch (error) {
          return ConnectError.from(error).message;
        }
      }
    });
    await waitFor(async () => stored > 100);
    // A terminal signals the whole group, and npm passes the signal on: it comes twice.
    if (signal === "SIGINT") process.kill(-Number(child.pid), signal);
    else child.kill(signal);
    for (const failure of await Promise.all(callers)) {
      expect(failure).toMatch(/^\[unavailable\]|REFUSED_STREAM/);
    }
    const status = await exited;
    if (signal === "SIGINT") expect(status).toBe(0);
    await expect.poll(() => existsSync(`/proc/${pid}`)).toBe(false);
  },
);
