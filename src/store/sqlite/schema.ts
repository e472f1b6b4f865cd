/** What a file of this service has in it, and what tells it from the files of other programs. */
import type { DatabaseSync } from "node:sqlite";
import { countCommit, pragma } from "./commit-count.ts";
import { resultCode, resultCodeOf } from "./errors.ts";

/** "INRE", which marks a file as one of this service (PRAGMA application_id). */
const applicationId = 0x494e5245;

const columns = `CREATE TABLE investors (
  id BLOB PRIMARY KEY NOT NULL CHECK (length(id) = 16),
  type INTEGER NOT NULL,
  first_name TEXT NOT NULL,
  middle_name TEXT NOT NULL,
  last_name TEXT NOT NULL,
  address_line1 TEXT NOT NULL,
  address_line2 TEXT NOT NULL,
  city TEXT NOT NULL,
  state TEXT NOT NULL,
  zip_code TEXT NOT NULL,
  country TEXT NOT NULL,
  language TEXT NOT NULL`;
const options = ") STRICT, WITHOUT ROWID";

/** Makes the table and the mark in an empty file whose commits are counted, within a transaction. */
export function createTable(db: DatabaseSync): void {
  db.exec(`${columns}${options}; PRAGMA application_id = ${applicationId}`);
  countCommit(db);
}

/**
 * Whether nothing is in the file yet. The time that it takes does not depend on how much is.
 *
 * @throws {Error} it is not one that this service can use
 */
export function isEmpty(db: DatabaseSync): boolean {
  // In this order, since another process may be making both.
  const hasTable = db.prepare("SELECT 1 FROM sqlite_schema LIMIT 1").get() !== undefined;
  const id = pragma(db, "application_id");
  if (id === 0 && !hasTable) return true;
  const named = "name = 'investors' COLLATE NOCASE";
  const made = db.prepare(`SELECT type, sql FROM sqlite_schema WHERE ${named}`).get();
  const hasOurs = isOurs(String(made?.sql));
  // One that was made again of what SQLite's .dump wrote has no mark.
  const isMarked = id === applicationId || (id === 0 && hasOurs);
  if (!isMarked) throw new Error("it belongs to another program");
  if (!hasOurs) {
    const what = made ? `its investors is another ${made.type}` : "it has no table investors";
    throw new Error(`${what}: another program has changed it`);
  }
  const ofTable = "type = 'trigger' AND tbl_name = 'investors' COLLATE NOCASE";
  const trigger = db.prepare(`SELECT name FROM sqlite_schema WHERE ${ofTable}`).get()?.name;
  if (trigger) throw new Error(`it has a trigger, ${trigger}, which can change records: drop it`);
  refuseOtherIds(db);
  return false;
}

/** Whether a table is made as ours is, perhaps with more columns; its rules then hold for all rows. */
function isOurs(sql: string): boolean {
  const made = plain(sql);
  const first = plain(columns);
  const more = made.slice(first.length);
  return made.startsWith(first) && /^[,)]/.test(more) && more.endsWith(plain(options));
}

/** Other programs, and SQLite as it renames a table, write the same with other spaces and quotes. */
function plain(sql: string): string {
  return sql.replaceAll(/[\s"`[\]]/g, "").toLowerCase();
}

/**
 * Looks at the first and the last id, since a program can write past the rules of a table. All that
 * are no bytes are before those that are; the reads that meet one between find it.
 */
function refuseOtherIds(db: DatabaseSync): void {
  for (const [which, order] of [
    ["first", "ASC"],
    ["last", "DESC"],
  ]) {
    try {
      const query = `SELECT typeof(id) AS type, length(id) AS size FROM investors ORDER BY id ${order}`;
      const { type, size } = db.prepare(`${query} LIMIT 1`).get() ?? {};
      // Nothing but damage makes one of no type.
      if (type === undefined || type === "null" || (type === "blob" && size === 16)) continue;
      const what = type === "blob" ? `${size} bytes` : type;
      throw new Error(`another program has written a record whose id, the ${which}, is ${what}`);
    } catch (error) {
      // A damaged page fails the calls that need it, and not the start.
      const codes: unknown[] = [resultCode.corrupt, resultCode.ioError];
      if (!codes.includes(resultCodeOf(error))) throw error;
    }
  }
}
