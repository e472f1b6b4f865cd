import { createHistogram } from "node:perf_hooks";
import { Worker } from "node:worker_threads";
import type { Load, Result } from "./generator.ts";

/** How a load went: calls a second, and times of a call in milliseconds. */
export interface Measured {
  rate: number;
  p50: number;
  p99: number;
  p999: number;
  /** How many records it stored. */
  created: number;
}

/**
 * Puts a load on a server, from a thread per 256 callers.
 *
 * @throws {Error} an answer was not right
 */
export async function run(load: Load): Promise<Measured> {
  const threads = Math.ceil(load.callers / 256);
  const results = await Promise.all(
    Array.from({ length: threads }, (_, i) => runThread(share(load, i, threads))),
  );
  const histogram = createHistogram({ figures: 3 });
  for (const result of results) histogram.add(result.histogram);
  const sum = (key: "calls" | "created") => results.reduce((total, each) => total + each[key], 0);
  const ms = (percentile: number) => histogram.percentile(percentile) / 1_000;
  return {
    rate: sum("calls") / load.seconds,
    p50: ms(50),
    p99: ms(99),
    p999: ms(99.9),
    created: sum("created"),
  };
}

function share(load: Load, i: number, threads: number): Load {
  const { work, rate } = load;
  return {
    ...load,
    callers: Math.floor((load.callers + i) / threads),
    ...(rate !== undefined && { rate: rate / threads }),
    work: work.kind === "create" ? { ...work, prefix: `${work.prefix}${i}.` } : work,
  };
}

function runThread(load: Load): Promise<Result> {
  return new Promise((resolve, reject) => {
    new Worker(new URL("generator.ts", import.meta.url), { workerData: load })
      .once("message", resolve)
      .once("error", reject);
  });
}
