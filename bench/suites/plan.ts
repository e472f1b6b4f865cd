import type { Memory } from "../entrant.ts";
import type { GoPeers } from "../go.ts";
import type { Effort, Goal, Outcome } from "../race.ts";

/** What to measure, and where. */
export interface Plan {
  effort: Effort;
  growth: { callers: number[]; records: number[] };
  /** How often a server is started to tell how long that takes. */
  starts: number;
  /** A folder on the disk that is measured. */
  folder: string;
  /** Absent where they cannot be built. */
  go: GoPeers | undefined;
  /** Tells of progress. */
  say(text: string): void;
}

/** The most records that are measured with. */
export function mostRecords({ growth }: Plan): number {
  return growth.records.at(-1) ?? 0;
}

/** A figure that stands alone. */
export interface Figure {
  title: string;
  value: number;
  unit: string;
  goal?: Omit<Goal, "measure"> & { is: "at least" | "at most" };
}

/** How many callers there are where the number of records grows. */
export const usualCallers = 32;

/** Throughput and latency of the service at a size. */
export interface Growth {
  store: "SQLite" | "MongoDB";
  operation: "create" | "get" | "page N";
  callers: number;
  records: number;
  rate: number;
  p50: number;
  p99: number;
  cpu: number;
}

/** What a suite has found. */
export interface Findings {
  outcomes: Outcome[];
  figures: Figure[];
  growth: Growth[];
  memory: Memory[];
}
