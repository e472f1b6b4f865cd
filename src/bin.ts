#!/usr/bin/env node
// Not imported by name: an older Node.js lacks enableCompileCache, and the import would fail.
import * as module from "node:module";
import { constants } from "node:os";
import { setFlagsFromString } from "node:v8";
import { readBuild } from "./version.ts";

const { oldestNode } = readBuild();
const { node } = process.versions;
// Before the import of main.ts, which would fail on older versions with unhelpful messages.
if (node.localeCompare(oldestNode, "en", { numeric: true }) < 0) {
  process.stderr.write(
    `error: investor-records needs Node.js ${oldestNode} or newer, not ${node}: https://nodejs.org\n`,
  );
  process.exit(2);
}

// Otherwise V8 treats short-lived objects of calls as long-lived, which costs CPU.
setFlagsFromString("--no-allocation-site-pretenuring");
module.enableCompileCache();

// Until the command handles them: PID 1 of a container would not receive them at all.
for (const signal of ["SIGTERM", "SIGINT"] as const) {
  process.on(signal, () => process.exit(128 + constants.signals[signal]));
}
// Until the service handles it, SIGHUP would end the process.
process.on("SIGHUP", () => {});
// Otherwise Node.js would open a debugger to every user of the machine.
process.on("SIGUSR1", () => {});

await import("./main.ts");
