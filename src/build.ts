import { readFileSync } from "node:fs";

/** The folder of the package, as seen from `src` and, once built, from `dist`. */
export const packageFolder = new URL("../", import.meta.url);

/**
 * Reads what is running from the package.json of the service: its version and, if whoever built it
 * set `gitHead` there, the commit that it was built from.
 */
export function readBuild(): { version: string; gitHead?: string } {
  return JSON.parse(readFileSync(new URL("package.json", packageFolder), "utf8"));
}
