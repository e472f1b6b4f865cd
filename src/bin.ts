#!/usr/bin/env node
import { readFileSync } from "node:fs";
import { enableCompileCache } from "node:module";
import { setFlagsFromString } from "node:v8";

// Otherwise V8 allocates what short-lived calls need as if it lived long, which costs a quarter of
// the CPU of a Get.
setFlagsFromString("--no-allocation-site-pretenuring");
enableCompileCache();

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
await import("./main.ts");
