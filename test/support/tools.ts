import { spawnSync } from "node:child_process";

/**
 * Whether a program is there to test with. Under CI it must be; elsewhere a test that
 * needs it is skipped, and says so.
 */
export function hasTool(name: string, args: string[]): boolean {
  const isThere = spawnSync(name, args, { stdio: "ignore" }).error === undefined;
  if (isThere) return true;
  if (process.env.CI) throw new Error(`the tests need ${name}`);
  console.warn(`SKIPPED: the tests with ${name}, which is not installed`);
  return false;
}
