/**
 * The table of records: creating, writing, reading it, and telling our files from those of other
 * programs. Only this file knows its columns.
 */
import type { DatabaseSync, SQLInputValue, SQLOutputValue } from "node:sqlite";
import { create } from "@bufbuild/protobuf";
import { type Investor, InvestorSchema } from "../../../gen/investor/v1/investor_pb.js";
import { type TextField, textFields } from "../../investor/investor.ts";
import { countCommit, pragma } from "./commit-count.ts";

/** Marks a file as ours: "INRE" (PRAGMA application_id). */
const applicationId = 0x494e5245;

/** The columns of a record, in the table's order: name and declaration. */
const columns = [
  ["id", "BLOB PRIMARY KEY NOT NULL CHECK (length(id) = 16)"],
  ["type", "INTEGER NOT NULL"],
  ...textFields.map((field) => [toSnakeCase(field), "TEXT NOT NULL"]),
] as const;
const names = columns.map(([name]) => name);
const head = `CREATE TABLE investors (
  ${columns.map((column) => column.join(" ")).join(",\n  ")}`;
const options = ") STRICT, WITHOUT ROWID";

/** The columns to SELECT for {@link toInvestor}. */
export const selected = names.slice(1).join(", ");

/** Inserts a {@link Row}, unless its id is taken. */
export const insertSql = `INSERT INTO investors (${names.join(", ")})
  VALUES (unhex(?, '-')${", ?".repeat(columns.length - 1)}) ON CONFLICT (id) DO NOTHING`;

/**
 * The parameters of {@link insertSql}. The id is text: a small Buffer is a view of a pool of 64
 * KiB, all of which would be sent to the writer thread.
 */
export type Row = SQLInputValue[];

export function toRow(investor: Investor): Row {
  return [investor.id, investor.type, ...textFields.map((field) => investor[field])];
}

/** Converts a row that starts with the {@link selected} columns. */
export function toInvestor(id: string, row: SQLOutputValue[]): Investor {
  const investor = create(InvestorSchema);
  investor.id = id;
  investor.type = row[0] as number;
  for (let i = 0; i < textFields.length; i += 1) {
    investor[textFields[i] as TextField] = row[i + 1] as string;
  }
  return investor;
}

/** Creates the table in an empty file, marks the file as ours and counts the commit. Needs a transaction. */
export function createTable(db: DatabaseSync): void {
  db.exec(`${head}${options}; PRAGMA application_id = ${applicationId}`);
  countCommit(db);
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
