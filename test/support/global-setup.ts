import { chmodSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { MongoBinary } from "mongodb-memory-server-core";
import type { TestProject } from "vitest/node";
import { buildService } from "./clone.ts";

declare module "vitest" {
  interface ProvidedContext {
    hasMongo: boolean;
    /** The path of the service, as built for all tests. */
    bin: string;
    /** How long a test may take, and how long it may wait for something, in milliseconds. */
    testMs: number;
    waitMs: number;
  }
}

/** Builds the service, and finds MongoDB or downloads it, once for all tests. Under CI, it must be there. */
export async function setup(project: TestProject): Promise<() => void> {
  const binary = await MongoBinary.getPath().catch((error) => {
    if (process.env.CI) throw error;
  });
  project.provide("hasMongo", binary !== undefined);
  const folder = mkdtempSync(join(tmpdir(), "investor-records-"));
  // Some tests run it as another user.
  chmodSync(folder, 0o755);
  project.provide("bin", buildService(folder));
  return () => rmSync(folder, { recursive: true });
}
