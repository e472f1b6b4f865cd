import { execFileSync } from "node:child_process";
import {
  appendFileSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { root } from "./support/clone.ts";
import { needs } from "./support/tools.ts";

describe("a clone", needs("git"), () => {
  let clone: string;

  const run = (program: string, ...args: string[]) =>
    execFileSync(program, args, { cwd: clone, encoding: "utf8", stdio: "pipe" }).trim();

  const versionOf = (folder: string) =>
    run(process.execPath, join(folder, "dist/bin.js"), "--version");

  beforeAll(() => {
    clone = mkdtempSync(join(tmpdir(), "investor-records-"));
    run("git", "clone", "--quiet", root, ".");
    run("git", "config", "user.name", "Example");
    run("git", "config", "user.email", "somebody@example.com");
    symlinkSync(join(root, "node_modules"), join(clone, "node_modules"));
    appendFileSync(join(clone, ".git/info/exclude"), "node_modules\n");
  });

  afterAll(() => rmSync(clone, { recursive: true, force: true }));

  it("names its commit as the version, and so does its package", () => {
    const { version } = JSON.parse(readFileSync(join(clone, "package.json"), "utf8"));
    const expected = `${version} (${run("git", "rev-parse", "HEAD")})`;
    run("npm", "pack", "--silent");
    expect(versionOf(clone)).toBe(expected);
    run("tar", "-xf", `investor-records-${version}.tgz`);
    symlinkSync(join(root, "node_modules"), join(clone, "package/node_modules"));
    expect(versionOf(join(clone, "package"))).toBe(expected);
    const contract = readdirSync(join(clone, "package/proto/investor/v1"));
    expect(contract).toEqual(readdirSync(join(root, "proto/investor/v1")));
    rmSync(join(clone, "package"), { recursive: true });

    appendFileSync(join(clone, "README.md"), "A change.\n");
    run("npm", "run", "build");
    expect(versionOf(clone)).toBe(expected.replace(")", "-dirty)"));
    expect(() => run("npm", "run", "release", "--", "9.8.7")).toThrow("commit or stash");
    run("git", "checkout", "README.md");
  });

  it("is released under a version that it has everywhere", () => {
    const { version } = JSON.parse(readFileSync(join(clone, "package.json"), "utf8"));
    const filesOf = (text: string) =>
      run("git", "grep", "-lwF", text, "--", "*.json", "*.yaml", ":!*-lock.json").split("\n");
    const files = filesOf(version);
    const changelog = join(clone, "CHANGELOG.md");
    const changes = readFileSync(changelog, "utf8").replace(/^## Unreleased\n.*?(?=^## )/ms, "");
    const title = "# Changelog\n\n";
    writeFileSync(changelog, changes.replace(title, `${title}## Unreleased\n\nA change.\n\n`));
    run("git", "commit", "--quiet", "--all", "--message", "A change");
    run("npm", "run", "release", "--", "9.8.7");
    expect(run("git", "status", "--porcelain")).toBe("");
    expect(run("git", "rev-parse", "v9.8.7^{commit}")).toBe(run("git", "rev-parse", "HEAD"));
    expect(filesOf("9.8.7")).toEqual(files);
    expect(readFileSync(changelog, "utf8")).toMatch(
      /^# Changelog\n\n## 9\.8\.7 - \d{4}-\d\d-\d\d\n\nA change\.\n\n## /,
    );
    expect(() => run("npm", "run", "release", "--", "9.8.8")).toThrow("under Unreleased");
  });
});
