import { closeSync, existsSync, openSync, readSync, realpathSync } from "node:fs";
import { dirname } from "node:path";
import type { DatabaseSync } from "node:sqlite";
import { uuidToBytes } from "../../investor/ids.ts";
import { emptyWal } from "./checkpoint.ts";
import { countCommit, frameHeaderSize, pragma, walHeaderSize } from "./commit-count.ts";
import { commit, openSqliteFile, openSqliteFileToRead } from "./file.ts";
import { sizeOf, syncPath } from "./paths.ts";
import { columnsOf } from "./schema.ts";

/** Options of a removal from an SQLite file. */
export interface RemovalOptions {
  /** How long to wait for other processes, in milliseconds, at each step. */
  waitMs: number;
  /** Whether to rewrite the whole file if copies remain; creates wait meanwhile. */
  vacuum: boolean;
  /** Prints progress and findings. */
  say(line: string): void;
}

/** How often to rewrite the records on pages with copies; one or two rounds are usually enough. */
const maxRounds = 3;

const pagesAtOnce = 1_024;

/** The most pages to rewrite per round. The bytes of some ids, such as nil, are on every page. */
const maxFound = 256;

/**
 * Removes a record from a file while others use it. A page split can leave copies of moved records
 * in free space, and the WAL holds old versions of pages: file and WAL are searched for the id
 * until neither contains it.
 *
 * @returns whether no copy is left, except one that a create has stored meanwhile
 * @throws {Error} for operators, if the file cannot be used, or others use its WAL for too long
 */
export async function removeFromSqlite(path: string, id: string, options: RemovalOptions) {
  const { waitMs, vacuum, say } = options;
  // Refuses a missing or foreign file before changing anything.
  const reader = openSqliteFileToRead(path);
  const pageSize = pragma(reader, "page_size");
  reader.close();
  const key = uuidToBytes(id);
  let pages: Buffer[] = [];
  for (let round = 0; round <= maxRounds + Number(vacuum); round += 1) {
    const { db } = await openSqliteFile(path, () => {}, waitMs);
    try {
      // Temporary tables in memory: no copy reaches another file.
      db.exec("PRAGMA secure_delete = ON; PRAGMA temp_store = MEMORY");
      db.exec(`PRAGMA busy_timeout = ${waitMs}`);
      if (round === 0) {
        say(deleteRecord(db, key) ? `removed ${id} from ${path}` : `${path} has no record ${id}`);
      } else if (db.prepare("SELECT 1 FROM investors WHERE id = ?").get(key)) {
        say("a retry of its create has stored it again meanwhile");
        return true;
      } else if (round <= maxRounds) {
        say(`found copies on ${pages.length} pages: rewriting the records there`);
        writeAgain(db, pages);
      } else {
        say(`found copies on ${pages.length} pages: rewriting the whole file`);
        db.exec("VACUUM");
      }
      if (!(await emptyWal(db, waitMs))) {
        throw new Error(
          "another process reads the file, and so keeps its WAL, which may hold a copy of the record: " +
            "end it and repeat the command, or raise --wait",
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
    say("reading the file and its WAL for copies of the record");
    // Opening the file here would drop the locks of this process's connections, but none is open.
    // The WAL is read last, since pages that other processes change meanwhile go there.
    pages = findParts(file, 0, pageSize, key);
    pages.push(...findParts(wal, walHeaderSize, frameHeaderSize + pageSize, key));
    if (pages.length === 0) {
      say("found none; a retry of its create would store it again");
      return true;
    }
  }
  say(
    `error: copies are left on ${pages.length} pages: repeat the command with --vacuum, which rewrites the whole ` +
      "file: creates wait or fail, up to a minute per gigabyte, and it needs room for two more copies of the file",
  );
  return false;
}

function deleteRecord(db: DatabaseSync, key: Buffer): boolean {
  return commit(db, () => {
    countCommit(db);
    // Version 0.3 kept ids of removed records there.
    db.exec("DROP TABLE IF EXISTS removed");
    return db.prepare("DELETE FROM investors WHERE id = ?").run(key).changes === 1;
  });
}

/** The equal-sized parts of a file that contain some bytes; none if the file does not exist. */
function findParts(path: string, start: number, partSize: number, bytes: Buffer): Buffer[] {
  const found: Buffer[] = [];
  if (sizeOf(path) === 0) return found;
  const buffer = Buffer.alloc(partSize * pagesAtOnce);
  const descriptor = openSync(path, "r");
  try {
    for (let position = start, size = 1; size > 0; position += size) {
      size = readSync(descriptor, buffer, 0, buffer.length, position);
      const read = buffer.subarray(0, size);
      for (let at = read.indexOf(bytes); at !== -1 && found.length < maxFound; ) {
        const part = at - (at % partSize);
        found.push(Buffer.from(read.subarray(part, part + partSize)));
        at = read.indexOf(bytes, part + partSize);
      }
    }
    return found;
  } finally {
    closeSync(descriptor);
  }
}

/** Deletes the records on these pages and inserts them again, so that SQLite lays the pages out anew. */
function writeAgain(db: DatabaseSync, pages: Buffer[]): void {
  // Includes columns that other programs have added, except computed ones, which accept no values.
  const all = columnsOf(db)
    .map(({ name }) => `"${name.replaceAll('"', '""')}"`)
    .join(", ");
  db.exec(`CREATE TEMP TABLE again AS SELECT ${all} FROM investors LIMIT 0`);
  const keep = db.prepare(`INSERT INTO again SELECT ${all} FROM investors WHERE id = ?`);
  // An id can start at any byte of a page. Looked up before the transaction, since this takes longer.
  const find = db.prepare("SELECT 1 FROM investors WHERE id = ?");
  const ids = pages.flatMap((page) =>
    Array.from(page, (_, at) => page.subarray(at, at + 16)).filter((id) => find.get(id)),
  );
  commit(db, () => {
    countCommit(db);
    for (const id of ids) keep.run(id);
    db.exec("DELETE FROM investors WHERE id IN (SELECT id FROM again)");
    db.exec(`INSERT INTO investors (${all}) SELECT DISTINCT * FROM again`);
  });
}
