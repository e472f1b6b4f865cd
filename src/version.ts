import { readFileSync } from "node:fs";

/** The commit, which the build inserts (rolldown.config.ts). Undeclared when running from source. */
declare const COMMIT: string | undefined;

/** The folder of the package, as seen from `src` and, once built, from `dist`. */
export const packageFolder = new URL("../", import.meta.url);

/**
 * Describes this build: version, oldest supported Node.js, and commit, which is empty if the build
 * did not know it.
 */
export function readBuild(): { version: string; oldestNode: string; commit: string } {
  const text = readFileSync(new URL("package.json", packageFolder), "utf8");
  const { version, engines } = JSON.parse(text);
  const commit = typeof COMMIT === "undefined" ? "" : COMMIT;
  return { version, oldestNode: engines.node.replace(">=", ""), commit };
}
