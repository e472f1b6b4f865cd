import { readFileSync } from "node:fs";

const microsecondsPerTick = 10_000;

/**
 * The CPU time in microseconds that a process has used so far in all its threads
 * (proc_pid_stat(5)); NaN where the system does not tell.
 */
export function cpuTimeOf(pid: number): number {
  if (process.platform !== "linux") return Number.NaN;
  const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  // The name of the program comes before, in parentheses, and may hold anything.
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return (Number(fields[11]) + Number(fields[12])) * microsecondsPerTick;
}
