import {
  closeSync,
  existsSync,
  fsyncSync,
  openSync,
  readSync,
  realpathSync,
  writeSync,
} from "node:fs";
import { basename, dirname, join } from "node:path";
import type { DatabaseSync } from "node:sqlite";
import { sizeOf } from "./paths.ts";

/**
 * Refuses what another file, or a killed program, has left beside a path, before SQLite opens the file.
 * A WAL without its file: SQLite ignores one beside a link, and deletes one, with the records in it,
 * if the file is empty. A journal: SQLite would play it back into whatever file is there, and this
 * service leaves none.
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
    // The WAL first: another process that is making both writes to the file before the WAL.
    // SQLite takes a file of one byte for an empty one.
    if (sizeOf(wal) === 0 || (name === file && sizeOf(file) > 1)) continue;
    throw new Error(`its WAL ${wal} is there without it: put the file back beside its WAL`);
  }
}

/**
 * Writes the bytes of a WAL where they are, and syncs them, before its checkpoint. It may have been
 * written by a process whose sync failed or never returned. Blocks that the disk lost are still in the
 * page cache, which takes them for written: no later sync would write them, and a power cut during the
 * checkpoint would leave a file half changed, and no WAL to repair it from.
 *
 * SQLite has no locks on the WAL that closing it could drop; the write lock keeps other processes
 * from changing a part meanwhile.
 */
export function rewriteWal(db: DatabaseSync, wal: string): void {
  const descriptor = openSync(wal, "r+");
  try {
    const chunk = Buffer.alloc(1024 * 1024);
    for (let position = 0, size = 1; size > 0; position += size) {
      // Taken for each part, so that others can commit in between.
      db.exec("BEGIN IMMEDIATE");
      try {
        size = readSync(descriptor, chunk, 0, chunk.length, position);
        for (let done = 0; done < size; ) {
          done += writeSync(descriptor, chunk, done, size - done, position + done);
        }
      } finally {
        db.exec("ROLLBACK");
      }
    }
    fsyncSync(descriptor);
  } finally {
    closeSync(descriptor);
  }
}
