import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { temporaryFolder } from "./folder.ts";

/** A clock for child processes that can be shifted while they run. */
interface Clock {
  /** What goes into the environment of a process. */
  readonly env: NodeJS.ProcessEnv;
  /** Shifts it by seconds from the true time. */
  shift(seconds: number): void;
}

/** Makes a clock, for which a C compiler is needed. */
export function createClock(): Clock {
  const folder = temporaryFolder();
  const library = join(folder, "shifted-clock.so");
  const source = resolve(import.meta.dirname, "shifted-clock.c");
  execFileSync("cc", ["-shared", "-fPIC", "-O2", "-o", library, source]);
  const file = join(folder, "clock");
  const shift = (seconds: number) =>
    writeFileSync(file, new BigInt64Array([BigInt(seconds)]), { flag: "r+" });
  writeFileSync(file, new BigInt64Array(1));
  return { env: { LD_PRELOAD: library, CLOCK_SHIFT: file }, shift };
}
