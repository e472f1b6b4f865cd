import { setFlagsFromString } from "node:v8";

const megabyte = 1024 * 1024;

/** How many connections there may be by default. */
const defaultMaxConnections = 1_024;

/**
 * Memory is short above the sum of these, in MB: for the process without connections, and for the
 * default number of them. With that many idle on TLS the process takes 200.
 */
const emptyMb = 115;
const connectionsMb = 100;

/** Once short, memory stays short until it falls to this fraction of that sum. */
const enoughShare = 0.95;

/** How often to look at the memory, in milliseconds. */
const checkMs = 100;

/** By how much V8 lets its heap grow until it collects all garbage, in percent; 0 lets V8 decide. */
const growthFlag = "--heap-growing-percent=";
const startedWith = process.execArgv.findLast((flag) => flag.startsWith(growthFlag));
const usualGrowth = startedWith ?? `${growthFlag}0`;
const savingGrowth = `${growthFlag}10`;

/** The age up to which a measurement is reused, in milliseconds: each takes some 20 µs. */
const freshMs = 5;

/**
 * Creates a function that returns the memory of the process in bytes, or its last value if no file
 * descriptor is left to read it.
 */
export function createMemoryGauge(): () => number {
  let bytes = 0;
  let measuredAt = Number.NEGATIVE_INFINITY;
  return () => {
    const now = performance.now();
    if (now - measuredAt < freshMs) return bytes;
    measuredAt = now;
    try {
      bytes = process.memoryUsage.rss();
    } catch {}
    return bytes;
  };
}

/** The memory of the process above which it is short, in bytes. */
export function shortBytes(maxConnections: number): number {
  const factor = Math.max(1, maxConnections / defaultMaxConnections);
  return (emptyMb + factor * connectionsMb) * megabyte;
}

/**
 * Tells V8 to save memory while it is short. Otherwise it keeps all pages that its heap once used, and
 * the garbage of 950 callers who list 100 records each takes 20 to 40 MB more. Always told so, it
 * takes 15 to 35 % more CPU.
 */
export function saveMemory(maxConnections: number): void {
  const memoryBytes = createMemoryGauge();
  const bytes = shortBytes(maxConnections);
  let isSaving = false;
  setInterval(() => {
    const isShort = memoryBytes() > (isSaving ? enoughShare : 1) * bytes;
    if (isShort === isSaving) return;
    isSaving = isShort;
    setFlagsFromString(isSaving ? "--memory-saver-mode" : "--no-memory-saver-mode");
    setFlagsFromString(isSaving ? savingGrowth : usualGrowth);
  }, checkMs).unref();
}
