import { readFileSync } from "node:fs";

/** The folder of the package, as seen from `src` and, once built, from `dist`. */
export const packageFolder = new URL("../", import.meta.url);

/** What is running. */
export interface Build {
  readonly version: string;
  /** The commit that it was built from, if whoever built it set `gitHead` in package.json. */
  readonly gitHead?: string;
}

/** Reads what is running from the package.json of the service. */
export function readBuild(): Build {
  return JSON.parse(readFileSync(new URL("package.json", packageFolder), "utf8"));
}
