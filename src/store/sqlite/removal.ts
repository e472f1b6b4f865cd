import { closeSync, existsSync, openSync, readSync, realpathSync } from "node:fs";
import { dirname } from "node:path";
import type { DatabaseSync } from "node:sqlite";
import { uuidToBytes } from "../../investor/ids.ts";
import { emptyWal } from "./checkpoint.ts";
import { countCommit, frameHeaderSize, pragma, walHeaderSize } from "./commit-count.ts";
import { commit, openSqliteFile, openSqliteFileToRead } from "./file.ts";
import { sizeOf, syncPath } from "./paths.ts";
import { columnsOf } from "./schema.ts";

/** How a removal works on an SQLite file. */
export interface RemovalOptions {
  /** How long other processes may hold it up, in milliseconds, each time that it needs them. */
  waitMs: number;
  /** Whether to rewrite the whole file if copies are left otherwise; creates wait meanwhile. */
  vacuum: boolean;
  /** Says what it does and what it has found. */
  say(line: string): void;
}

/** How many times to write the records beside copies again; one or two are enough for most. */
const maxRounds = 3;

/** How many pages are read at once. */
const pagesAtOnce = 1_024;

/** The most pages to write again at once. The bytes of some ids, such as nil, are on every page. */
const maxFound = 256;

/**
 * Removes a record from a file while others use it. When a page is split, copies of the records that
 * move can stay in space that is free then, and the WAL has former versions of pages: file and WAL
 * are read through for the id until neither has it.
 *
 * @returns whether nothing of it is left, but for what a create has stored meanwhile
 * @throws {Error} for operators, if the file cannot be used, or others use its WAL for too long
 */
export async function removeFromSqlite(path: string, id: string, options: RemovalOptions) {
  const { waitMs, vacuum, say } = options;
  // Refuses a file that is missing, and one of another program, before anything changes.
  const reader = openSqliteFileToRead(path);
  const pageSize = pragma(reader, "page_size");
  reader.close();
  const key = uuidToBytes(id);
  let pages: Buffer[] = [];
  for (let round = 0; round <= maxRounds + Number(vacuum); round += 1) {
    const { db } = await openSqliteFile(path, () => {}, waitMs);
    try {
      // What is written again passes through no other file.
      db.exec("PRAGMA secure_delete = ON; PRAGMA temp_store = MEMORY");
      db.exec(`PRAGMA busy_timeout = ${waitMs}`);
      if (round === 0) {
        say(deleteRecord(db, key) ? `removed ${id} from ${path}` : `${path} has no record ${id}`);
      } else if (db.prepare("SELECT 1 FROM investors WHERE id = ?").get(key)) {
        say("a retry of its create has stored it again meanwhile");
        return true;
      } else if (round <= maxRounds) {
        say(`found some on ${pages.length} pages: rewriting the records there`);
        writeAgain(db, pages);
      } else {
        say(`found some on ${pages.length} pages: rewriting the whole file`);
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
    // SQLite truncates or deletes it without a sync: a power cut could bring it back.
    if (existsSync(wal)) syncPath(wal);
    syncPath(dirname(file));
    say("reading the file and its WAL for copies of the record");
    // This would drop the locks of a connection to the file, but none is open. The WAL comes second,
    // since it gets what other processes move meanwhile.
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
    // Version 0.3 kept ids in it.
    db.exec("DROP TABLE IF EXISTS removed");
    return db.prepare("DELETE FROM investors WHERE id = ?").run(key).changes === 1;
  });
}

/** The parts of a file, if it is there, all of one size, that hold some bytes. */
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

/** Deletes the records of these pages and inserts them again, so that SQLite lays the pages out anew. */
function writeAgain(db: DatabaseSync, pages: Buffer[]): void {
  // Other programs can have added columns that are computed, and take no values.
  const all = columnsOf(db)
    .map(({ name }) => `"${name.replaceAll('"', '""')}"`)
    .join(", ");
  db.exec(`CREATE TEMP TABLE again AS SELECT ${all} FROM investors LIMIT 0`);
  const keep = db.prepare(`INSERT INTO again SELECT ${all} FROM investors WHERE id = ?`);
  // An id can be anywhere on a page. These lookups take longer than the transaction.
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
