import { readFileSync } from "node:fs";

/**
 * The memory in MB that a process has, or the most it ever had (proc_pid_status(5)).
 *
 * @throws {Error} the process has ended, or the system is not Linux
 */
export function memoryMb(pid: number | undefined, kind: "now" | "peak"): number {
  const status = readFileSync(`/proc/${pid}/status`, "utf8");
  const field = kind === "now" ? /VmRSS:\s*(\d+)/ : /VmHWM:\s*(\d+)/;
  return Number(field.exec(status)?.[1]) / 1024;
}
