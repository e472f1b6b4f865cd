import { spawnSync } from "node:child_process";
import { cpSync, mkdirSync, symlinkSync } from "node:fs";
import { delimiter, join, resolve } from "node:path";

/** The repository. */
export const root = resolve(import.meta.dirname, "../..");

/** The PATH with the tools of the repository in it. */
export const toolPath = `${join(root, "node_modules/.bin")}:${process.env.PATH}`;

/** The PATH of somebody who has none of the packages of the repository. */
export const foreignPath = (process.env.PATH ?? "")
  .split(delimiter)
  .filter((folder) => !folder.includes("node_modules"))
  .join(delimiter);

const copied = [
  ...["client", "deploy", "examples", "gen", "proto", "runtime", "src"],
  ...["LICENSE", "package.json", "rolldown.config.ts", "tsconfig.json"],
];

/**
 * Copies to a folder what the service, its client and the examples are made of.
 *
 * @param user the part that finds the packages of the repository
 */
export function copyClone(folder: string, user = "."): void {
  for (const name of copied) {
    cpSync(join(root, name), join(folder, name), { recursive: true, verbatimSymlinks: true });
  }
  symlinkSync(join(root, "node_modules"), join(folder, user, "node_modules"));
}

/**
 * Builds the service in a folder. It takes some 50 MB less than the sources, which need a compiler
 * when they run.
 *
 * @returns the path of the program
 */
export function buildService(folder: string): string {
  mkdirSync(folder, { recursive: true });
  copyClone(folder);
  const options = { cwd: folder, encoding: "utf8" } as const;
  const { status, stdout, stderr } = spawnSync("npm", ["run", "--silent", "build"], options);
  // It has nothing to say.
  if (status !== 0 || stdout + stderr !== "") throw new Error(`the build: ${stdout}${stderr}`);
  return join(folder, "dist/bin.js");
}
