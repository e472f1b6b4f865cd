import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { onTestFinished } from "vitest";

/** A folder of the running test's own, removed after it. */
export function temporaryFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), "investor-records-"));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

/** A file of the running test's own, by its path. */
export function temporaryFile(text: string): string {
  const path = join(temporaryFolder(), "file");
  writeFileSync(path, text, { mode: 0o600 });
  return path;
}

/** A file system of 2 MiB in memory, or undefined where none may be mounted. */
export function temporaryDisk(folder: string): string | undefined {
  mkdirSync(folder);
  try {
    execFileSync("mount", ["-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], { stdio: "ignore" });
  } catch (error) {
    if (process.env.CI) throw error;
    return undefined;
  }
  onTestFinished(() => {
    execFileSync("umount", ["-l", folder]);
  });
  return folder;
}
