import { existsSync, realpathSync } from "node:fs";
import { open } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import type { DatabaseSync } from "node:sqlite";
import { setTimeout as delay } from "node:timers/promises";
import { sizeOf } from "./paths.ts";

/**
 * Refuses leftovers of another file or a killed program beside a path, before SQLite opens the
 * file. SQLite ignores a WAL beside a link, and deletes the WAL of an empty file, with the records
 * in it. SQLite would roll a journal back into whatever file is there; this service never leaves
 * one.
 */
export function refuseLeftovers(path: string): void {
  const beside = join(realpathSync(dirname(path)), basename(path));
  const file = existsSync(path) ? realpathSync(path) : beside;
  for (const name of [beside, file]) {
    const journal = `${name}-journal`;
    if (sizeOf(journal) > 0) {
      throw new Error(
        `the journal ${journal} is there, which SQLite would play back into the file. ` +
          "Nothing has been changed. If you have put a backup in the place of the file, move the journal away; " +
          "if a killed program left it of this very file, this plays it back and deletes it: " +
          `sqlite3 '${file}' 'PRAGMA journal_mode = PERSIST; PRAGMA journal_mode = DELETE'`,
      );
    }
    const wal = `${name}-wal`;
    // Check the WAL first: another process that is creating both writes to the file before the WAL.
    // SQLite treats a file of one byte as empty.
    if (sizeOf(wal) === 0 || (name === file && sizeOf(file) > 1)) continue;
    throw new Error(`its WAL ${wal} is there without it: put the file back beside its WAL`);
  }
}

/**
 * Rewrites the bytes of a WAL in place and syncs them, before its first checkpoint here. The sync of the
 * process that wrote them may have failed or never returned. The page cache then regards blocks that the
 * disk lost as written: no later sync would write them, and a power cut during the checkpoint would
 * leave a half-changed file without a WAL to repair it from.
 *
 * Closing the WAL drops no locks, since SQLite has none on it.
 */
export async function rewriteWal(db: DatabaseSync, wal: string): Promise<void> {
  await using file = await open(wal, "r+");
  const chunk = Buffer.alloc(1024 * 1024);
  for (let at = 0, size = 1; size > 0; at += size) {
    // Locked chunk by chunk, and the pause lets other processes commit in between.
    db.exec("BEGIN IMMEDIATE");
    try {
      const { bytesRead } = await file.read(chunk, 0, chunk.length, at);
      size = (await file.write(chunk, 0, bytesRead, at)).bytesWritten;
    } finally {
      db.exec("ROLLBACK");
    }
    await delay(1);
  }
  await file.sync();
}
