import { closeSync, fdatasyncSync, mkdtempSync, openSync, rmSync, writeSync } from "node:fs";
import { join } from "node:path";

/** How many writes of a page the disk makes durable in a second, one after the other. */
export function measureSyncs(folder: string, seconds: number): number {
  const own = mkdtempSync(join(folder, "sync-"));
  const file = openSync(join(own, "file"), "w");
  const page = Buffer.alloc(4_096, 1);
  const end = performance.now() + seconds * 1_000;
  let count = 0;
  for (; performance.now() < end; count += 1) {
    writeSync(file, page, 0, page.length, (count % 256) * page.length);
    fdatasyncSync(file);
  }
  closeSync(file);
  rmSync(own, { recursive: true });
  return count / seconds;
}
