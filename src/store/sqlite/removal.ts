import { existsSync, realpathSync } from "node:fs";
import { dirname } from "node:path";
import { uuidToBytes } from "../../investor/ids.ts";
import { emptyWal } from "./checkpoint.ts";
import { countCommit } from "./commit-count.ts";
import { commit, openSqliteFile, openSqliteFileToRead } from "./file.ts";
import { syncPath } from "./paths.ts";

/** Options of a removal from an SQLite file. */
export interface RemovalOptions {
  /** How long to wait for other processes, in milliseconds, at each step. */
  waitMs: number;
  /** Whether to rewrite the whole file; creates wait meanwhile. */
  vacuum: boolean;
  /** Prints progress and findings. */
  say(line: string): void;
  /** Called once the record is deleted, or was not there, but its file or WAL may still hold copies. */
  onDeleted(wasThere: boolean): void;
}

/**
 * Removes a record from a file and its WAL while others use them. A page that was split can keep a copy
 * of a moved record in its free space, which only the rewriting of the whole file clears.
 *
 * @throws {Error} for operators, if the file cannot be used, or others use its WAL for too long
 */
export async function removeFromSqlite(
  path: string,
  id: string,
  { waitMs, vacuum, say, onDeleted }: RemovalOptions,
): Promise<void> {
  // Refuses a missing or foreign file before changing anything.
  openSqliteFileToRead(path).close();
  const { db } = await openSqliteFile(path, () => {}, waitMs);
  try {
    // Temporary tables in memory: no copy reaches another file.
    db.exec("PRAGMA secure_delete = ON; PRAGMA temp_store = MEMORY");
    db.exec(`PRAGMA busy_timeout = ${waitMs}`);
    const { changes } = commit(db, () => {
      countCommit(db);
      return db.prepare("DELETE FROM investors WHERE id = ?").run(uuidToBytes(id));
    });
    onDeleted(changes === 1);
    if (vacuum) {
      say("rewriting the whole file");
      db.exec("VACUUM");
    }
    if (!(await emptyWal(db, waitMs))) {
      throw new Error(
        "another process reads the file, and so keeps its WAL: end it and repeat the command, or raise --wait",
      );
    }
  } finally {
    db.close();
  }
  const file = realpathSync(path);
  const wal = `${file}-wal`;
  // SQLite does not sync after truncating or deleting the WAL: a power cut could bring it back.
  if (existsSync(wal)) syncPath(wal);
  syncPath(dirname(file));
  if (!vacuum)
    say("free space of the file may still hold a copy: --vacuum rewrites the whole file");
}
