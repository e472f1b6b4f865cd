import { cpSync, symlinkSync } from "node:fs";
import { join, resolve } from "node:path";
import { temporaryFolder } from "./folder.ts";

/** The repository. */
export const root = resolve(import.meta.dirname, "../..");

/** The PATH with the tools of the repository in it. */
export const toolPath = `${join(root, "node_modules/.bin")}:${process.env.PATH}`;

/** A copy of what callers need of the repository, in which they may write. */
export function copyClone(): string {
  const folder = temporaryFolder();
  for (const name of ["client", "examples", "proto", "LICENSE", "tsconfig.json"]) {
    cpSync(join(root, name), join(folder, name), { recursive: true });
  }
  // The client is compiled against them; what the callers install is their own.
  symlinkSync(join(root, "node_modules"), join(folder, "client/node_modules"));
  return folder;
}
