import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { it } from "vitest";
import { root } from "./clone.ts";
import { exampleTimeoutMs, tryExample } from "./example.ts";

/** Whether Maven is there and can fetch what the example needs. */
function hasMaven(): boolean {
  const args = ["-q", "-B", "dependency:resolve"];
  const options = { cwd: join(root, "examples/java"), stdio: "ignore" } as const;
  if (spawnSync("mvn", args, options).status === 0) return true;
  console.warn("SKIPPED: the example in Java, without Maven or its repository");
  return false;
}

it.skipIf(!hasMaven())(
  "Java: the example runs as printed, and ends at its deadline",
  () => tryExample("Java"),
  exampleTimeoutMs,
);
