import { spawnSync } from "node:child_process";
import { dirname, join } from "node:path";
import { expect, inject } from "vitest";
import { root } from "./clone.ts";

/** The name of a backup that was made so many days ago. */
export function nameFrom(daysAgo: number): string {
  const time = new Date(Date.now() - daysAgo * 86_400_000);
  return `${time.toISOString().replaceAll(":", "-")}.db`;
}

/** Runs a program of deploy/ beside the build, to its end. */
export function runProgram(name: string, argument: string, env: NodeJS.ProcessEnv) {
  const args = [join(root, "deploy", name), argument];
  const options = { cwd: dirname(dirname(inject("bin"))), encoding: "utf8", env } as const;
  const { status, stdout, stderr } = spawnSync(process.execPath, args, options);
  return { status, told: stdout + stderr };
}

/** What a program says that has to end with a status. */
export function toldBy({ status, told }: ReturnType<typeof runProgram>, expected = 0): string {
  expect(status, told).toBe(expected);
  return told;
}
