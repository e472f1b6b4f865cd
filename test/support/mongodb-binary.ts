import { execFileSync } from "node:child_process";
import { MongoBinary } from "mongodb-memory-server-core";
import type { TestProject } from "vitest/node";

declare module "vitest" {
  interface ProvidedContext {
    hasMongo: boolean;
  }
}

/** Finds MongoDB, or downloads it, once for all tests. Under CI, it must be there. */
export async function setup(project: TestProject): Promise<void> {
  const binary = await MongoBinary.getPath().catch((error) => {
    if (process.env.CI) throw error;
  });
  project.provide("hasMongo", binary !== undefined);
  if (binary === undefined) return;
  const [version] = execFileSync(binary, ["--version"], { encoding: "utf8" }).split("\n");
  console.log(`MongoDB: ${version}`);
}
