import type { Answer, Effort } from "../compare.ts";

/** What to measure, and where. */
export interface Plan {
  effort: Effort;
  growth: { callers: number[]; records: number[] };
  /** A folder on the disk that is measured. */
  folder: string;
  /** Tells of progress. */
  say(text: string): void;
}

/** A figure that has no other beside it. */
export interface Figure {
  title: string;
  value: number;
  unit: string;
  /** What it must not exceed. */
  limit?: number;
  /** What it must reach. */
  least?: number;
}

/** Throughput and latency of the service at a size. */
export interface Growth {
  store: "SQLite" | "MongoDB";
  operation: "create" | "get" | "page N";
  callers: number;
  records: number;
  rate: number;
  p50: number;
  p99: number;
}

/** What a suite has found. */
export interface Findings {
  answers: Answer[];
  figures: Figure[];
  growth: Growth[];
}
