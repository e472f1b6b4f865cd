import { createHistogram } from "node:perf_hooks";
import { Worker } from "node:worker_threads";
import type { Load, Result } from "./generator.ts";

/** How a load went. */
export interface Measured {
  /** Calls a second. */
  rate: number;
  /** Times of a call in milliseconds. */
  p50: number;
  p99: number;
  /** CPU time that the server took for a call, in microseconds. */
  cpu: number;
}

/** How long a load may take besides the time that is measured, in milliseconds. */
const patienceMs = 60_000;

/**
 * Puts a load on a server, from a thread per 256 callers, and tells of how many records it
 * stored.
 *
 * @throws {Error} a reply was not right
 */
export async function putLoad(load: Load): Promise<Measured & { created: number }> {
  const threads = Math.ceil(load.callers / 256);
  const results = await Promise.all(
    Array.from({ length: threads }, (_, i) => runThread(share(load, i, threads))),
  );
  const histogram = createHistogram({ figures: 3 });
  for (const result of results) histogram.add(result.histogram);
  const sum = (key: "created" | "cpuTime" | "cpuCalls") =>
    results.reduce((total, each) => total + each[key], 0);
  const ms = (percentile: number) => histogram.percentile(percentile) / 1_000;
  return {
    rate: histogram.count / load.seconds,
    p50: ms(50),
    p99: ms(99),
    // Each thread has seen the CPU time of the calls of all.
    cpu: sum("cpuTime") / threads / sum("cpuCalls"),
    created: sum("created"),
  };
}

function share(load: Load, i: number, threads: number): Load {
  const { work, rate } = load;
  return {
    ...load,
    callers: Math.floor((load.callers + i) / threads),
    rate: rate && rate / threads,
    work: work.kind === "create" ? { ...work, prefix: `${work.prefix}${i}.` } : work,
  };
}

function runThread(load: Load): Promise<Result> {
  return new Promise((resolve, reject) => {
    const worker = new Worker(new URL("generator.ts", import.meta.url), { workerData: load });
    const timer = setTimeout(
      () => {
        reject(new Error("calls were not replied to"));
        void worker.terminate();
      },
      load.seconds * 1_000 + patienceMs,
    );
    worker
      .once("message", resolve)
      .once("error", reject)
      .once("exit", () => clearTimeout(timer));
  });
}
