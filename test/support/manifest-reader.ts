import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { beforeAll, expect } from "vitest";
import { sharedFolder } from "./folder.ts";
import { needs } from "./tools.ts";

/**
 * Builds, before the tests of a file or a group, what reads manifests as those do that they are for. It
 * is in Go: only their own types refuse a field that they do not know, and Kustomize is a library there.
 *
 * @returns a function that reads the objects in a file or, by kustomize, in a folder
 */
export function createManifestReader() {
  const folder = sharedFolder();

  beforeAll(() => {
    if (needs("Go").skip) return;
    const built = spawnSync("go", ["build", "-o", join(folder, "read"), "."], {
      cwd: join(import.meta.dirname, "manifests"),
      encoding: "utf8",
    });
    expect(built.stderr.replaceAll(/^go: downloading .*\n/gm, "")).toBe("");
  });

  return (kind: "compose" | "kubernetes", path: string) => {
    const { stdout, stderr } = spawnSync(join(folder, "read"), [kind, path], { encoding: "utf8" });
    if (stderr !== "") throw new Error(stderr);
    const lines = stdout.trim().split("\n");
    return lines.map((line) => JSON.parse(line));
  };
}
