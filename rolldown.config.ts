import { defineConfig } from "rolldown";

/**
 * Puts what the service loads at its start into few files: the hundreds that it comes from would
 * take a third of the time until it is ready.
 */
export default defineConfig({
  input: ["src/bin.ts", "src/main.ts", "src/store/sqlite-writer.ts"],
  platform: "node",
  // What is loaded when it is needed, or found by those who trace it.
  external: ["@opentelemetry/api", "cli-progress", "jose", "mongodb", "pino", "pino-pretty"],
  output: { cleanDir: true, chunkFileNames: "[name].js" },
});
