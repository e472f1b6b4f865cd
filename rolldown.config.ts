import { spawnSync } from "node:child_process";
import { defineConfig } from "rolldown";

/** What git calls the commit that is built. A container is built without git, but with REVISION. */
function readCommit(): string {
  const { REVISION } = process.env;
  if (REVISION) return REVISION;
  // No other repository than that of this folder.
  const args = ["--git-dir=.git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"];
  return spawnSync("git", args, { encoding: "utf8" }).stdout?.trim() ?? "";
}

/**
 * Bundles what the service loads at its start: as the hundreds of modules that it is, it would take
 * a third of the time until the service is ready.
 */
export default defineConfig({
  input: ["src/bin.ts", "src/main.ts", "src/store/sqlite/writer.ts", "src/deploy.ts"],
  platform: "node",
  transform: { define: { COMMIT: JSON.stringify(readCommit()) } },
  // Loaded only when it is needed, or patched by instrumentation, which needs the real module.
  external: [/^@opentelemetry\//, "jose", "mongodb", "pino", "pino-pretty"],
  output: { cleanDir: true, chunkFileNames: "[name].js" },
});
