#!/usr/bin/env node
// An older Node.js has no enableCompileCache, and would fail to import it by its name.
import * as module from "node:module";
import { constants } from "node:os";
import { setFlagsFromString } from "node:v8";
import { readBuild } from "./version.ts";

const { oldestNode } = readBuild();
const { node } = process.versions;
// What is imported below may need what an older version lacks, and fail in words of its own.
if (node.localeCompare(oldestNode, "en", { numeric: true }) < 0) {
  process.stderr.write(
    `error: investor-records needs Node.js ${oldestNode} or newer, not ${node}: https://nodejs.org\n`,
  );
  process.exit(2);
}

// Otherwise V8 allocates what short-lived calls need as if it lived long, which costs CPU.
setFlagsFromString("--no-allocation-site-pretenuring");
module.enableCompileCache();

// Until the command handles them: as PID 1 of a container, the process would not get them at all.
for (const signal of ["SIGTERM", "SIGINT"] as const) {
  process.on(signal, () => process.exit(128 + constants.signals[signal]));
}
// Until the service handles it, SIGHUP would end the process.
process.on("SIGHUP", () => {});
// Otherwise Node.js would open a debugger to every user of the machine.
process.on("SIGUSR1", () => {});

await import("./main.ts");
