import { execFile } from "node:child_process";
import { existsSync, renameSync } from "node:fs";
import { mkdir, mkdtemp } from "node:fs/promises";
import { homedir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";

const execute = promisify(execFile);

const packages = ["grpcio", "grpcio-health-checking", "grpcio-reflection"].map(
  (name) => `${name}==1.85.1`,
);

/** A Python with the packages of gRPC, which are installed once for all runs of the tests. */
export async function findPython(): Promise<string> {
  const cache = join(homedir(), ".cache", "investor-records");
  const folder = join(cache, `python-${packages[0]}`);
  const python = join(folder, "bin", "python");
  if (existsSync(python)) return python;
  await mkdir(cache, { recursive: true });
  const making = await mkdtemp(join(cache, "making-"));
  await execute("python3", ["-m", "venv", making]);
  await execute(join(making, "bin", "pip"), ["install", "--quiet", ...packages]);
  try {
    renameSync(making, folder);
  } catch {
    // Another test was faster.
  }
  return python;
}

/**
 * Runs a program in Python and gives what it printed, line by line as JSON.
 *
 * @param input what it reads, as JSON
 */
export async function runPython<T>(program: string, input: unknown): Promise<T[]> {
  const running = execute(await findPython(), ["-c", program]);
  running.child.stdin?.end(JSON.stringify(input));
  const lines = (await running).stdout.split("\n").filter((line) => line !== "");
  return lines.map((line) => JSON.parse(line));
}
