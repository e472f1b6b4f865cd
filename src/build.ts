import { readFileSync } from "node:fs";

/** What is running. */
export interface Build {
  readonly version: string;
  /** The commit that it was built from, if whoever built it set `gitHead` in package.json. */
  readonly gitHead?: string;
}

/** Reads what is running from the package.json of the service. */
export function readBuild(): Build {
  return JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8"));
}
