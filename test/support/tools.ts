import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { delimiter, join } from "node:path";
import type { LaunchOptions } from "playwright-core";
import type { TestOptions } from "vitest";
import { root } from "./clone.ts";

declare module "vitest" {
  interface TaskMeta {
    /** What a skipped test lacks. */
    lacks?: string;
  }
}

/** What some of the tests need beside npm. */
interface Tool {
  /** A command of the shell, run in the repository, that succeeds where it is there. */
  probe: string;
  /** How to get it. */
  get: string;
  /** Whether the tests pass without it under CI, too. */
  isOptional?: true;
}

/** The npm of the oldest Node.js that README allows. */
export const oldestNpm = "npm@10.8.2";

const tools = {
  "access for all": {
    probe: `test "$(id -u)" != 0 || setpriv --reuid=65534 --regid=65534 --clear-groups ${process.execPath} -e 'require("pino")'`,
    get: "the package util-linux; a clone and a Node.js in folders that every user may enter",
    isOptional: true,
  },
  actionlint: {
    probe: "actionlint --version",
    get: "go install github.com/rhysd/actionlint/cmd/actionlint@latest",
    isOptional: true,
  },
  buildah: {
    probe: 'buildah --version && test "$(id -u)" = 0',
    get: "the package buildah; run the tests as root",
    isOptional: true,
  },
  caddy: { probe: "caddy version", get: "the package caddy", isOptional: true },
  cc: { probe: "cc --version", get: "the package gcc" },
  chattr: {
    probe: 'file=$(mktemp) && chattr +i "$file" && chattr -i "$file" && rm "$file"',
    get: "the package e2fsprogs; run the tests as root, with a file system that has the flag in /tmp",
    isOptional: true,
  },
  Chromium: {
    probe: "command -v chromium || command -v google-chrome",
    get: "the package chromium",
    isOptional: true,
  },
  curl: { probe: "curl --version", get: "the package curl" },
  git: { probe: "git --version", get: "the package git" },
  Go: {
    probe: "go -C test/support/callers list -deps .",
    get: "https://go.dev/dl, and access to a proxy of modules",
  },
  grpcurl: { probe: "grpcurl --version", get: "https://github.com/fullstorydev/grpcurl" },
  history: {
    probe: "git cat-file -e 4c92f4d^{commit}",
    get: "a clone with the commits of older versions: git fetch --unshallow",
    isOptional: true,
  },
  IPv6: {
    probe: "grep ' lo$' /proc/net/if_inet6",
    get: "a machine with the address ::1",
    isOptional: true,
  },
  Java: { probe: "java --version", get: "the package default-jdk", isOptional: true },
  jq: { probe: "jq --version", get: "the package jq", isOptional: true },
  Linux: { probe: "uname | grep Linux", get: "a machine or a container with Linux" },
  Maven: {
    probe: "mvn -B -f examples/java dependency:resolve",
    get: "the packages maven and default-jdk, and access to a repository",
    isOptional: true,
  },
  mongodump: {
    probe: "mongodump --version && mongorestore --version",
    get: "the MongoDB Database Tools, https://www.mongodb.com/try/download/database-tools",
    isOptional: true,
  },
  loop: {
    probe: `file=$(mktemp) && truncate -s 1M "$file" && mkfs.ext4 -q "$file" && unshare --mount mount -o loop "$file" /mnt && rm "$file"`,
    get: "the package e2fsprogs; run the tests as root, in a container with --privileged",
    isOptional: true,
  },
  mongosh: {
    probe: "mongosh --version && mongod --version",
    get: "https://www.mongodb.com/try/download/community and https://www.mongodb.com/try/download/shell",
    isOptional: true,
  },
  mount: {
    probe: "unshare --mount mount -t tmpfs tmpfs /mnt",
    get: "the right to mount file systems: run the tests as root, in a container with --privileged",
  },
  nginx: { probe: "nginx -v", get: "the package nginx", isOptional: true },
  "npm 10": {
    probe: `npm exec --yes --prefer-offline ${oldestNpm} -- --version`,
    get: "access to a registry of npm",
    isOptional: true,
  },
  openssl: { probe: "openssl version", get: "the package openssl" },
  "packages of Debian": {
    probe: "dpkg-deb --version && apt-get indextargets --format '$(REPO_URI)' | grep '/debian/$'",
    get: "a machine with Debian and access to its mirror",
    isOptional: true,
  },
  prlimit: { probe: "prlimit --version", get: "the package util-linux" },
  promtool: { probe: "promtool --version", get: "the package prometheus", isOptional: true },
  Python: { probe: "python3 -c 'import ensurepip'", get: "the package python3-venv" },
  sqlite3: { probe: "sqlite3 -version", get: "the package sqlite3", isOptional: true },
  "a tag": {
    probe: "git describe --tags --match 'v*'",
    get: "a clone with the tags of versions: git fetch --tags",
    isOptional: true,
  },
  "systemd-analyze": {
    probe: "systemd-analyze --version",
    get: "the package systemd",
    isOptional: true,
  },
} satisfies Record<string, Tool>;

/** How to get what tests can lack. */
export const waysToGet: Record<string, string> = {
  ...Object.fromEntries(Object.entries(tools).map(([name, { get }]) => [name, get])),
  "Node.js 20": "a node in the PATH that is 20.19 or a later 20",
  MongoDB: "access to fastdl.mongodb.org, or MONGOMS_SYSTEM_BINARY=/path/of/mongod",
};

/** The options of a test that needs tools: it is skipped where one is missing. Under CI, it fails. */
export function needs(...names: (keyof typeof tools)[]): TestOptions {
  const options = { cwd: root, stdio: "ignore" } as const;
  const missing = names.find((name) => spawnSync("sh", ["-c", tools[name].probe], options).status);
  return missing === undefined ? {} : lacking(missing, "isOptional" in tools[missing]);
}

/**
 * The options of a test that lacks something.
 *
 * @throws {Error} under CI, unless it is optional
 */
export function lacking(name: string, isOptional = false): TestOptions {
  if (process.env.CI && !isOptional) throw new Error(`the tests need ${name}`);
  return { skip: true, meta: { lacks: name } };
}

/** How to start Chromium. */
export function chromiumOptions(): LaunchOptions {
  const executablePath = (process.env.PATH ?? "")
    .split(delimiter)
    .flatMap((folder) => ["chromium", "google-chrome"].map((name) => join(folder, name)))
    .find((path) => existsSync(path));
  return { ...(executablePath && { executablePath }), chromiumSandbox: process.getuid?.() !== 0 };
}
