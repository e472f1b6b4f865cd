import { defineConfig } from "rolldown";

/**
 * Bundles what the service loads at its start: as the hundreds of modules that it is, it would take
 * a third of the time until the service is ready.
 */
export default defineConfig({
  input: ["src/bin.ts", "src/main.ts", "src/store/sqlite-writer.ts"],
  platform: "node",
  // Loaded only when it is needed, or patched by instrumentation, which needs the real module.
  external: ["@opentelemetry/api", "cli-progress", "jose", "mongodb", "pino", "pino-pretty"],
  output: { cleanDir: true, chunkFileNames: "[name].js" },
});
