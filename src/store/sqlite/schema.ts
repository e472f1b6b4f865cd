/**
 * The table of records: how it is made, written and read, and what tells a file that has it from the
 * files of other programs. Nothing else knows its columns.
 */
import type { DatabaseSync, SQLInputValue, SQLOutputValue } from "node:sqlite";
import { create } from "@bufbuild/protobuf";
import { type Investor, InvestorSchema } from "../../../gen/investor/v1/investor_pb.js";
import { type TextField, textFields } from "../../investor/investor.ts";
import { countCommit, pragma } from "./commit-count.ts";
import { hasCode, resultCode } from "./errors.ts";

/** "INRE", which marks a file as one of this service (PRAGMA application_id). */
const applicationId = 0x494e5245;

/** The columns that a record needs, in the order of the table: each by its name, and as it is declared. */
const columns = [
  ["id", "BLOB PRIMARY KEY NOT NULL CHECK (length(id) = 16)"],
  ["type", "INTEGER NOT NULL"],
  ...textFields.map((field) => [toSnakeCase(field), "TEXT NOT NULL"]),
] as const;
const names = columns.map(([name]) => name);
const head = `CREATE TABLE investors (
  ${columns.map((column) => column.join(" ")).join(",\n  ")}`;
const options = ") STRICT, WITHOUT ROWID";

/** What {@link toInvestor} reads of a record, for SELECT. */
export const selected = names.slice(1).join(", ");

/** What inserts a {@link Row}, unless its id is taken. */
export const insertRow = `INSERT INTO investors (${names.join(", ")})
  VALUES (unhex(?, '-')${", ?".repeat(columns.length - 1)}) ON CONFLICT (id) DO NOTHING`;

/**
 * A record as {@link insertRow} takes it. The id is text: a small buffer is part of one of 64 KiB, all
 * of which would be sent to the thread that writes.
 */
export type Row = SQLInputValue[];

export function toRow(investor: Investor): Row {
  return [investor.id, investor.type, ...textFields.map((field) => investor[field])];
}

/** The record with this id, of an array that begins with what is {@link selected}. */
export function toInvestor(id: string, row: SQLOutputValue[]): Investor {
  const investor = create(InvestorSchema);
  investor.id = id;
  investor.type = row[0] as number;
  for (let i = 0; i < textFields.length; i += 1) {
    investor[textFields[i] as TextField] = row[i + 1] as string;
  }
  return investor;
}

/** Creates the table in an empty file, marks the file as ours and counts the commit, all in the caller's transaction. */
export function createTable(db: DatabaseSync): void {
  db.exec(`${head}${options}; PRAGMA application_id = ${applicationId}`);
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
  // A file made from the output of SQLite's .dump has no mark.
  const isMarked = id === applicationId || (id === 0 && hasOurs);
  if (!isMarked) throw new Error("it belongs to another program");
  if (!hasOurs) {
    const what = made ? `its investors is a foreign ${made.type}` : "it has no table investors";
    throw new Error(`${what}: another program has changed it`);
  }
  const ofTable = "type = 'trigger' AND tbl_name = 'investors' COLLATE NOCASE";
  const trigger = db.prepare(`SELECT name FROM sqlite_schema WHERE ${ofTable}`).get()?.name;
  if (trigger) throw new Error(`it has a trigger, ${trigger}, which can change records: drop it`);
  const needed = columnsOf(db).find((each) => each.needsValue && !names.includes(each.name));
  if (needed) {
    throw new Error(
      `another program has added a column, ${needed.name}, that needs a value: drop it`,
    );
  }
  refuseOtherIds(db);
  return false;
}

/** The columns that the table has, with those of other programs that can be written. */
export function columnsOf(db: DatabaseSync) {
  const found = db.prepare("PRAGMA table_info(investors)").all();
  return found.map(({ name, notnull, dflt_value }) => ({
    name: String(name),
    needsValue: notnull === 1 && dflt_value === null,
  }));
}

/** Whether a table is made as ours is, perhaps with more columns; our rules then hold for all rows. */
function isOurs(sql: string): boolean {
  const made = plain(sql);
  const first = plain(head);
  const more = made.slice(first.length);
  return made.startsWith(first) && /^[,)]/.test(more) && more.endsWith(plain(options));
}

function toSnakeCase(name: string): string {
  return name.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/** Other programs, and SQLite as it renames a table, write the same with other spaces and quotes. */
function plain(sql: string): string {
  return sql.replaceAll(/[\s"`[\]]/g, "").toLowerCase();
}

/**
 * Looks at the first and the last id, since a program can write past the rules of a table. Ids that
 * are no bytes come before those that are; reads find those in between.
 */
function refuseOtherIds(db: DatabaseSync): void {
  for (const [which, order] of Object.entries({ first: "ASC", last: "DESC" })) {
    try {
      const query = `SELECT typeof(id) AS type, length(id) AS size FROM investors ORDER BY id ${order}`;
      const { type, size } = db.prepare(`${query} LIMIT 1`).get() ?? {};
      // Nothing but damage makes one of no type.
      if (type === undefined || type === "null" || (type === "blob" && size === 16)) continue;
      const what = type === "blob" ? `${size} bytes` : type;
      throw new Error(`the ${which} id is ${what} and no UUID: another program has written it`);
    } catch (error) {
      // A damaged page fails the calls that need it, and not the start.
      if (!hasCode(error, resultCode.corrupt, resultCode.ioError)) throw error;
    }
  }
}
