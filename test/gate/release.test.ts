import { execFileSync } from "node:child_process";
import { appendFileSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { beforeAll, describe, expect, it } from "vitest";
import { root } from "../support/clone.ts";
import { sharedFolder, temporaryFolder } from "../support/folder.ts";
import { aCreate } from "../support/records.ts";
import { grpcClient, run as runProgram, startService } from "../support/service.ts";
import { needs } from "../support/tools.ts";

it("the changelog's sections of released versions never change", needs("a tag"), () => {
  const git = (...args: string[]) => execFileSync("git", args, { cwd: root, encoding: "utf8" });
  const tag = git("describe", "--tags", "--abbrev=0", "--match", "v*").trim();
  const sectionsOf = (text: string) =>
    text.split(/^(?=## )/m).filter((section) => /^## \d/.test(section));
  const released = sectionsOf(git("show", `${tag}:CHANGELOG.md`));
  const now = sectionsOf(readFileSync(join(root, "CHANGELOG.md"), "utf8"));
  expect(now.slice(-released.length)).toEqual(released);
});

describe("a clone", needs("git"), () => {
  const clone = sharedFolder();

  const run = (program: string, ...args: string[]) =>
    execFileSync(program, args, { cwd: clone, encoding: "utf8", stdio: "pipe" }).trim();

  const versionOf = () => run(process.execPath, "dist/bin.js", "--version");
  const release = (...args: string[]) => run("npm", "run", "release", "--", ...args);

  beforeAll(() => {
    run("git", "clone", "--quiet", root, ".");
    run("git", "config", "user.name", "Example");
    run("git", "config", "user.email", "somebody@example.com");
    symlinkSync(join(root, "node_modules"), join(clone, "node_modules"));
  });

  it("names its commit as the version", () => {
    const { version } = JSON.parse(readFileSync(join(clone, "package.json"), "utf8"));
    const expected = `${version} (${run("git", "rev-parse", "HEAD")})`;
    run("npm", "run", "build");
    expect(versionOf()).toBe(expected);
    appendFileSync(join(clone, "README.md"), "A change.\n");
    run("npm", "run", "build");
    expect(versionOf()).toBe(expected.replace(")", "-dirty)"));
    expect(() => release("9.8.7")).toThrow("commit or stash");
    run("git", "checkout", "README.md");
  });

  it("is released under a version that it has everywhere", () => {
    const { version, dependencies } = JSON.parse(readFileSync(join(clone, "package.json"), "utf8"));
    const filesOf = (text: string) =>
      run("git", "grep", "-lwF", text, "--", "*.json", "*.yaml", ":!*-lock.json").split("\n");
    const files = filesOf(version);
    const changelog = join(clone, "CHANGELOG.md");
    const changes = readFileSync(changelog, "utf8").replace(/^## Unreleased\n.*?(?=^## )/ms, "");
    const title = "# Changelog\n\n";
    writeFileSync(changelog, changes.replace(title, `${title}## Unreleased\n\nA change.\n\n`));
    run("git", "commit", "--quiet", "--all", "--message", "A change");
    const before = run("git", "rev-parse", "HEAD");
    const shown = release("--dry-run", "9.8.7");
    expect(shown).toMatch(/^\+## 9\.8\.7 - \d{4}-\d\d-\d\d$/m);
    expect(shown).toMatch(/^[0-9a-f]{64} {2}investor-records-client-9\.8\.7\.tgz$/m);
    expect(run("git", "rev-parse", "HEAD")).toBe(before);
    expect(run("git", "tag")).not.toContain("v9.8.7");
    const made = readdirSync(join(clone, "release"));
    release("9.8.7");
    expect(run("git", "status", "--porcelain")).toBe("");
    expect(run("git", "rev-parse", "v9.8.7^{commit}")).toBe(run("git", "rev-parse", "HEAD"));
    expect(filesOf("9.8.7")).toEqual(files);
    const text = readFileSync(changelog, "utf8");
    const [heading = ""] = /^## 9\.8\.7 - \d{4}-\d\d-\d\d$/m.exec(text) ?? [];
    expect(text).toBe(changes.replace(title, `${title}${heading}\n\nA change.\n\n`));
    expect(() => release("9.8.8")).toThrow("under Unreleased");

    expect(readdirSync(join(clone, "release"))).toEqual(made);
    expect(made).toEqual([
      "SHA256SUMS",
      "investor-records-9.8.7.cdx.json",
      "investor-records-9.8.7.tgz",
      "investor-records-client-9.8.7.tgz",
    ]);
    run("sh", "-c", "cd release && sha256sum --check --strict SHA256SUMS");
    const sbom = readFileSync(join(clone, "release/investor-records-9.8.7.cdx.json"), "utf8");
    const named = Array.from(sbom.matchAll(/"pkg:npm\/(.+)"/g), ([, purl = ""]) =>
      decodeURIComponent(purl),
    );
    const direct = Object.entries(dependencies).map((each) => each.join("@"));
    expect(named).toEqual(expect.arrayContaining(direct));
    expect(named.filter((name) => /^(node-linux|vitest)/.test(name))).toEqual([]);
  });

  it("leaves a server that installs with the Node.js that is there, and serves", async () => {
    const prefix = temporaryFolder();
    const packed = join(clone, "release/investor-records-9.8.7.tgz");
    run("npm", "install", "--global", "--prefer-offline", "--prefix", prefix, packed);
    const program = join(prefix, "bin/investor-records");
    const installed = join(prefix, "lib/node_modules/investor-records");
    const modules = readdirSync(join(installed, "node_modules"));
    expect(modules).toContain("mongodb");
    expect(modules.filter((name) => /node-linux|runtime/.test(name))).toEqual([]);
    const contract = readdirSync(join(installed, "proto/investor/v1"));
    expect(contract).toEqual(readdirSync(join(root, "proto/investor/v1")));
    const asked = runProgram(["--version"], {}, prefix, program);
    expect(await asked.exited).toBe(0);
    expect(asked.output()).toBe(`9.8.7 (${run("git", "rev-parse", "v9.8.7^{commit}")})\n`);
    const service = await startService({}, prefix, program);
    const record = await grpcClient(service).createInvestor(aCreate());
    expect(await grpcClient(service).getInvestor({ id: record.id })).toEqual(record);
  });
});
