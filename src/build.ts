import { readFileSync } from "node:fs";

/** The commit, which the build fills in (rolldown.config.ts). There is none in the sources. */
declare const COMMIT: string | undefined;

/** The folder of the package, as seen from `src` and, once built, from `dist`. */
export const packageFolder = new URL("../", import.meta.url);

/** Reads the version from package.json. The commit is empty if the build did not know it. */
export function readBuild(): { version: string; commit: string } {
  const { version } = JSON.parse(readFileSync(new URL("package.json", packageFolder), "utf8"));
  return { version, commit: typeof COMMIT === "undefined" ? "" : COMMIT };
}
