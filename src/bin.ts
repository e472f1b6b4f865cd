#!/usr/bin/env -S MALLOC_ARENA_MAX=2 MALLOC_TRIM_THRESHOLD_=131072 GLIBC_TUNABLES=glibc.malloc.mxfast=0 node --max-semi-space-size=8 --heap-growing-percent=70 --no-allocation-site-pretenuring
// Without the limit of the semi-space, a REST list of 1,000,000 records peaks at 164 MB instead of
// 114; without that of the heap's growth, attacks one after the other peak some 70 MB higher. Without
// the flag of pretenuring, Gets by gRPC take 24 % more CPU, those by Connect 7 %. Without the limit of
// malloc's arenas, attacks one after the other peak some 40 MB higher. The threshold of trimming also
// keeps malloc from raising the one of mmap: otherwise 950 callers who list 1,000 records each take
// 365 MB instead of 302. Without the tunable, a full collection, which frees some 400,000 headers of
// HTTP/2 at once, has malloc merge them in one go, and pauses for 41 ms instead of 21.
import { readFileSync } from "node:fs";

// Until the service handles it, SIGHUP would end the process.
process.on("SIGHUP", () => {});

const { engines } = JSON.parse(
  readFileSync(new URL("../package.json", import.meta.url), "utf8"),
) as { engines: { node: string } };
const needed = engines.node.replace(">=", "");
const { node } = process.versions;
// What is imported below may need what an older version lacks, and fail in words of its own.
if (node.localeCompare(needed, "en", { numeric: true }) < 0) {
  process.stderr.write(`error: investor-records needs Node.js ${needed} or newer, not ${node}\n`);
  process.exit(2);
}
// By default replies of 25 KB share pools of 64 KB, which stay until all of a pool has been collected:
// 950 callers who list 100 records each, over and over, leave the process 50 MB larger.
Buffer.poolSize = 8 * 1024;
await import("./main.ts");
