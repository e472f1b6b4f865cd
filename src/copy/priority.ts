import { existsSync, readdirSync } from "node:fs";
import { constants, setPriority } from "node:os";

/**
 * Lets a service on the same machine come first, where the system allows it. On Linux each thread
 * has a priority of its own, and those of V8 run already.
 */
export function lowerPriority(): void {
  const tasks = "/proc/self/task";
  const threads = existsSync(tasks) ? readdirSync(tasks).map(Number) : [];
  // In a namespace for processes, /proc may have the ids that are valid outside.
  for (const thread of threads.includes(process.pid) ? threads : [process.pid]) {
    try {
      setPriority(thread, constants.priority.PRIORITY_LOW);
    } catch {
      // The thread has ended, or a sandbox forbids it.
    }
  }
}
