/** What a process holds of memory and descriptors, as Linux tells it. */
import { readdirSync } from "node:fs";
import { memoryMb } from "../support/memory.ts";

/** Memory in MB, and open files and sockets. */
export interface Holdings {
  readonly residentMb: number;
  readonly descriptors: number;
}

/** What a process holds now; undefined if it has ended. */
export function holdingsOf(pid: number | undefined): Holdings | undefined {
  try {
    return { residentMb: memoryMb(pid, "now"), descriptors: readdirSync(`/proc/${pid}/fd`).length };
  } catch {
    return undefined;
  }
}

/** Looks at a process ten times a second; the result ends that and tells the most it has seen. */
export function watchProcess(pid: number | undefined): () => Holdings {
  let peak: Holdings = { residentMb: 0, descriptors: 0 };
  const look = () => {
    const { residentMb, descriptors } = holdingsOf(pid) ?? peak;
    peak = {
      residentMb: Math.max(peak.residentMb, residentMb),
      descriptors: Math.max(peak.descriptors, descriptors),
    };
  };
  const timer = setInterval(look, 100);
  return () => {
    clearInterval(timer);
    look();
    return peak;
  };
}
