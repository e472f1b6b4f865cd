import { readFileSync } from "node:fs";

/** The folder of the package, as seen from `src` and, once built, from `dist`. */
export const packageFolder = new URL("../", import.meta.url);

/**
 * Reads the version of the service from its package.json and, if the build set `gitHead` there, the
 * commit that it was built from.
 */
export function readBuild(): { version: string; gitHead?: string } {
  return JSON.parse(readFileSync(new URL("package.json", packageFolder), "utf8"));
}
