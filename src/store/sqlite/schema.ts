/**
 * The table of records: creating, writing, reading it, and telling our files from those of other
 * programs. Only this file knows its columns.
 */
import type { DatabaseSync, SQLInputValue, SQLOutputValue } from "node:sqlite";
import { create } from "@bufbuild/protobuf";
import { type Investor, InvestorSchema } from "../../../gen/investor/v1/investor_pb.js";
import { firstFields, laterFields, type TextField, textFields } from "../../investor/investor.ts";
import { countCommit, pragma } from "./commit-count.ts";
import { explainError, hasCode, resultCode } from "./sqlite-errors.ts";

/** Marks a file as ours: "INRE" (PRAGMA application_id). */
const applicationId = 0x494e5245;

/** The declaration of the table in every version, but for the columns that later ones add. */
const head = `CREATE TABLE investors (
  id BLOB PRIMARY KEY NOT NULL CHECK (length(id) = 16),
  type INTEGER NOT NULL,
  ${firstFields.map((field) => `${toSnakeCase(field)} TEXT NOT NULL`).join(",\n  ")}`;
const options = ") STRICT, WITHOUT ROWID";

const firstColumns = ["type", ...firstFields.map(toSnakeCase)];
const laterColumns = laterFields.map(toSnakeCase);

/** The columns after the id. */
const columns = [...firstColumns, ...laterColumns];

/** Inserts a {@link Row}, unless its id is taken. */
export const insertSql = `INSERT INTO investors (id, ${columns.join(", ")})
  VALUES (unhex(?, '-')${", ?".repeat(columns.length)}) ON CONFLICT (id) DO NOTHING`;

/**
 * The parameters of {@link insertSql}. The id is text: a small Buffer is a view of a pool of 64
 * KiB, all of which would be sent to the writer thread.
 */
export type Row = SQLInputValue[];

export function toRow(investor: Investor): Row {
  return [investor.id, investor.type, ...textFields.map((field) => investor[field])];
}

/**
 * The columns to SELECT for {@link toInvestor}: empty text for one that an older table lacks. One that
 * another program has declared is read as it is, NULL as empty.
 */
export function selectedFrom(db: DatabaseSync): string {
  const find = db.prepare(
    "SELECT 1 FROM pragma_table_xinfo('investors') WHERE name = ? COLLATE NOCASE",
  );
  const later = laterColumns.map((name) => (find.get(name) ? `ifnull(${name}, '')` : "''"));
  return [...firstColumns, ...later].join(", ");
}

/** Converts a row that starts with the columns of {@link selectedFrom}. */
export function toInvestor(id: string, row: SQLOutputValue[]): Investor {
  const investor = create(InvestorSchema);
  investor.id = id;
  investor.type = row[0] as number;
  for (let i = 0; i < textFields.length; i += 1) {
    investor[textFields[i] as TextField] = row[i + 1] as string;
  }
  return investor;
}

/**
 * Creates the table in an empty file and marks the file as ours, adds the columns that an older table
 * lacks, and counts the commit. Needs a transaction.
 *
 * @returns whether the file was empty
 * @throws {Error} a column cannot be added, as in a damaged file
 */
export function completeTable(db: DatabaseSync): boolean {
  const wasEmpty = isEmpty(db);
  if (wasEmpty) db.exec(`${head}${options}; PRAGMA application_id = ${applicationId}`);
  for (const name of columnsToAdd(db)) addColumn(db, name);
  countCommit(db);
  return wasEmpty;
}

/** Older versions go on writing, without naming the column. */
function addColumn(db: DatabaseSync, name: string): void {
  try {
    db.exec(`ALTER TABLE investors ADD COLUMN ${name} TEXT NOT NULL DEFAULT ''`);
  } catch (error) {
    // SQLite reads the whole table first.
    if (!hasCode(error, resultCode.corrupt, resultCode.error)) throw error;
    const remedy = "copy it to a new file, and start the service on that";
    throw new Error(`it cannot get the column ${name}: ${explainError(error)}; ${remedy}`);
  }
}

/** The columns of later fields that the table does not have as declared by {@link addColumn}. */
export function columnsToAdd(db: DatabaseSync): string[] {
  const find = db.prepare(`SELECT 1 FROM pragma_table_info('investors')
    WHERE name = ? AND type = 'TEXT' AND "notnull" AND dflt_value = quote('')`);
  return laterColumns.filter((name) => find.get(name) === undefined);
}

/**
 * Whether the file is still empty. Takes the same time however large it is.
 *
 * @throws {Error} this service cannot use the file
 */
export function isEmpty(db: DatabaseSync): boolean {
  // Table before mark, since another process may be creating both.
  const hasTable = db.prepare("SELECT 1 FROM sqlite_schema LIMIT 1").get() !== undefined;
  const id = pragma(db, "application_id");
  if (id === 0 && !hasTable) return true;
  const query = `SELECT type, name, sql FROM sqlite_schema WHERE tbl_name = 'investors' COLLATE NOCASE
    AND type IN ('table', 'view', 'trigger') ORDER BY type = 'trigger'`;
  const [object, trigger] = db.prepare(query).all();
  const isDeclaredLikeOurs = isOurs(String(object?.sql));
  // A file made from the output of SQLite's .dump has no mark.
  const isMarked = id === applicationId || (id === 0 && isDeclaredLikeOurs);
  if (!isMarked) throw new Error("it belongs to another program");
  if (!isDeclaredLikeOurs) {
    const what = object ? `its investors is a foreign ${object.type}` : "it has no table investors";
    throw new Error(`${what}: another program has changed it`);
  }
  if (trigger) {
    throw new Error(`it has a trigger, ${trigger.name}, which can change records: drop it`);
  }
  return false;
}

/** Whether a table is declared like ours, possibly with more columns; our rules then hold for all rows. */
function isOurs(sql: string): boolean {
  const made = plain(sql);
  const first = plain(head);
  const more = made.slice(first.length);
  return made.startsWith(first) && /^[,)]/.test(more) && more.endsWith(plain(options));
}

function toSnakeCase(name: string): string {
  return name.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/** Normalizes spaces, quotes and case, which other programs, and SQLite's renaming, write differently. */
function plain(sql: string): string {
  return sql.replaceAll(/[\s"`[\]]/g, "").toLowerCase();
}
