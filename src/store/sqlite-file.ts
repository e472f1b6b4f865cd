import { closeSync, fsyncSync, mkdirSync, openSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { DatabaseSync } from "node:sqlite";

/** "INRE", which marks a file as one of this service (PRAGMA application_id). */
const applicationId = 0x494e5245;

/** What brings a file from each version to the next (PRAGMA user_version). */
const migrations = [
  `CREATE TABLE investors (
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
    language TEXT NOT NULL
  ) STRICT, WITHOUT ROWID`,
];

/** Primary result codes of SQLite (https://www.sqlite.org/rescode.html). */
export const resultCode = {
  busy: 5,
  ioError: 10,
  corrupt: 11,
  full: 13,
  tooBig: 18,
  constraint: 19,
  mismatch: 20,
  notADatabase: 26,
} as const;

/** The primary result code of an error of SQLite, or undefined for any other error. */
export function resultCodeOf(error: unknown): number | undefined {
  if (!(error instanceof Error && "errcode" in error)) return undefined;
  return typeof error.errcode === "number" ? error.errcode & 0xff : undefined;
}

/** Whether the error says that the file is damaged. */
export function isDamage(error: unknown): boolean {
  const code = resultCodeOf(error);
  return code === resultCode.corrupt || code === resultCode.notADatabase;
}

/**
 * Opens the file for durable commits, waiting for other processes for at most
 * `busyTimeoutMs`. A file or folder that is not there is made; an older file is
 * brought up to date.
 *
 * @throws {Error} in plain words, if the file cannot be used
 */
export function openSqliteFile(path: string, busyTimeoutMs: number): DatabaseSync {
  let db: DatabaseSync | undefined;
  try {
    makeFolder(dirname(resolve(path)));
    db = new DatabaseSync(path, { timeout: busyTimeoutMs });
    // A commit is on the disk when it returns: FULL syncs the log at every one.
    db.exec("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL");
    db.exec("PRAGMA journal_size_limit = 67108864");
    migrate(db);
    return db;
  } catch (error) {
    db?.close();
    throw new Error(`cannot use the SQLite file ${path}: ${inPlainWords(error)}`, { cause: error });
  }
}

/** Makes a folder that survives a loss of power: each new entry is synced in its parent. */
function makeFolder(folder: string): void {
  const first = mkdirSync(folder, { recursive: true });
  if (first === undefined) return;
  for (let made = folder; made.length >= first.length; made = dirname(made)) {
    const parent = openSync(dirname(made), "r");
    try {
      fsyncSync(parent);
    } finally {
      closeSync(parent);
    }
  }
}

function migrate(db: DatabaseSync): void {
  const pragma = (name: string) => Number(db.prepare(`PRAGMA ${name}`).get()?.[name]);
  const current = () => pragma("application_id") === applicationId && pragma("user_version");
  if (current() === migrations.length) return;
  db.exec("BEGIN IMMEDIATE");
  try {
    // Read again: another process may have been faster.
    const version = current();
    const isEmpty = db.prepare("SELECT 1 FROM sqlite_schema LIMIT 1").get() === undefined;
    if (version === false && !isEmpty) throw new Error("it belongs to another program");
    if (version !== false && version > migrations.length) {
      throw new Error("it was written by a newer version of this service");
    }
    for (const step of migrations.slice(version || 0)) db.exec(step);
    db.exec(`PRAGMA application_id = ${applicationId}; PRAGMA user_version = ${migrations.length}`);
    db.exec("COMMIT");
  } finally {
    if (db.isTransaction) db.exec("ROLLBACK");
  }
}

function inPlainWords(error: unknown): string {
  if (isDamage(error)) return "it is damaged, or not an SQLite file";
  return error instanceof Error ? error.message : String(error);
}
