import { spawnSync } from "node:child_process";
import type { LaunchOptions } from "playwright-core";
import type { TestOptions } from "vitest";
import { root } from "./clone.ts";

declare module "vitest" {
  interface TaskMeta {
    /** What a skipped test lacks, and how to get it. */
    lacks?: string;
  }
}

/** What some of the tests need beside npm. */
interface Tool {
  /** A command of the shell, run in the repository, that succeeds where it is there. */
  probe: string;
  /** How to get it. */
  get: string;
  /** Whether the tests fail without it under CI. */
  isRequired?: true;
}

/** The npm of the oldest Node.js that README allows. */
export const oldestNpm = "npm@10.8.2";

const tools = {
  "access for all": {
    probe: `test "$(id -u)" != 0 || setpriv --reuid=65534 --regid=65534 --clear-groups ${process.execPath} -e 'require("pino")'`,
    get: "the package util-linux; a clone and a Node.js in folders that every user may enter",
  },
  actionlint: {
    probe: "actionlint --version",
    get: "go install github.com/rhysd/actionlint/cmd/actionlint@latest",
  },
  buildah: {
    probe: 'buildah --version && test "$(id -u)" = 0',
    get: "the package buildah; run the tests as root",
  },
  caddy: { probe: "caddy version", get: "the package caddy" },
  cc: { probe: "cc --version", get: "the package gcc", isRequired: true },
  Chromium: {
    probe: "command -v chromium || command -v google-chrome",
    get: "the package chromium",
  },
  curl: { probe: "curl --version", get: "the package curl", isRequired: true },
  git: { probe: "git --version", get: "the package git", isRequired: true },
  Go: {
    probe: "go -C test/support/callers list -deps .",
    get: "https://go.dev/dl, and access to a proxy of modules",
    isRequired: true,
  },
  grpcurl: {
    probe: "grpcurl --version",
    get: "https://github.com/fullstorydev/grpcurl",
    isRequired: true,
  },
  history: {
    probe: "git cat-file -e 4c92f4d^{commit}",
    get: "a clone with the commits of older versions: git fetch --unshallow",
  },
  IPv6: { probe: "grep ' lo$' /proc/net/if_inet6", get: "a machine with the address ::1" },
  Java: { probe: "java --version", get: "the package default-jdk" },
  jq: { probe: "jq --version", get: "the package jq" },
  Maven: {
    probe: "mvn -B -f examples/java dependency:resolve",
    get: "the packages maven and default-jdk, and access to a repository",
  },
  mongodump: {
    probe: "mongodump --version && mongorestore --version",
    get: "the MongoDB Database Tools, https://www.mongodb.com/try/download/database-tools",
  },
  loop: {
    probe: `file=$(mktemp) && truncate -s 1M "$file" && mkfs.ext4 -q "$file" && unshare --mount mount -o loop "$file" /mnt && rm "$file"`,
    get: "the package e2fsprogs; run the tests as root, in a container with --privileged",
  },
  mongosh: {
    probe: "mongosh --version && mongod --version",
    get: "https://www.mongodb.com/try/download/community and https://www.mongodb.com/try/download/shell",
  },
  mount: {
    probe: "unshare --mount mount -t tmpfs tmpfs /mnt",
    get: "the right to mount file systems: run the tests as root, in a container with --privileged",
    isRequired: true,
  },
  nginx: { probe: "nginx -v", get: "the package nginx" },
  "npm 10": {
    probe: `npm exec --yes --prefer-offline ${oldestNpm} -- --version`,
    get: "access to a registry of npm",
  },
  openssl: { probe: "openssl version", get: "the package openssl", isRequired: true },
  "packages of Debian": {
    probe: "dpkg-deb --version && apt-get indextargets --format '$(REPO_URI)' | grep '/debian/$'",
    get: "a machine with Debian and access to its mirror",
  },
  promtool: { probe: "promtool --version", get: "the package prometheus" },
  Python: {
    probe: "python3 -c 'import ensurepip'",
    get: "the package python3-venv",
    isRequired: true,
  },
  "a tag": {
    probe: "git describe --tags --match 'v*'",
    get: "a clone with the tags of versions: git fetch --tags",
  },
  "systemd-analyze": { probe: "systemd-analyze --version", get: "the package systemd" },
} satisfies Record<string, Tool>;

/** The options of a test that needs tools: it is skipped where one is missing. */
export function needs(...names: (keyof typeof tools)[]): TestOptions {
  const options = { cwd: root, stdio: "ignore" } as const;
  const missing = names.find((name) => spawnSync("sh", ["-c", tools[name].probe], options).status);
  if (missing === undefined) return {};
  const tool: Tool = tools[missing];
  return lacking(`${missing}: ${tool.get}`, tool.isRequired === true);
}

/**
 * The options of a test that lacks something, which says how to get it.
 *
 * @throws {Error} under CI, if it is required
 */
export function lacking(lacks: string, isRequired = true): TestOptions {
  if (process.env.CI && isRequired) throw new Error(`the tests need ${lacks}`);
  return { skip: true, meta: { lacks } };
}

/** How to start Chromium. */
export function chromiumOptions(): LaunchOptions {
  const { stdout } = spawnSync("sh", ["-c", tools.Chromium.probe], { encoding: "utf8" });
  return { executablePath: stdout.trim(), chromiumSandbox: process.getuid?.() !== 0 };
}
