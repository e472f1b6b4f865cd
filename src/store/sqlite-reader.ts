import type { DatabaseSync, SQLOutputValue } from "node:sqlite";
import { create } from "@bufbuild/protobuf";
import { type Investor, InvestorSchema } from "../../gen/investor/v1/investor_pb.js";
import { type TextField, textFields } from "../investor.ts";
import { uuidFromHex } from "../uuid.ts";
import { resultCode, resultCodeOf } from "./sqlite-errors.ts";
import type { Range, StoreObserver } from "./store.ts";

interface Lookup {
  id: string;
  resolve(investor: Investor | undefined): void;
  reject(error: unknown): void;
}

/** How many failed reads are remembered. */
const maxFailed = 16;

const columns = `type, first_name, middle_name, last_name, address_line1, address_line2, city,
  state, zip_code, country, language`;

/**
 * Reads records on the calling thread; what fails, fails with the error of SQLite. What is looked
 * up in one turn of the event loop shares a transaction, since its locks take longer than a lookup.
 *
 * @param lookups the connection to look records up by
 * @param pages the one to list them by
 */
export function createSqliteReader(
  lookups: DatabaseSync,
  pages: DatabaseSync,
  observe: StoreObserver,
) {
  const begin = lookups.prepare("BEGIN");
  const rollback = lookups.prepare("ROLLBACK");
  // Ids pass as text: a small buffer for each is slow to make and to collect.
  const findRow = lookups.prepare(`SELECT ${columns} FROM investors WHERE id = unhex(?, '-')`);
  const listRows = pages.prepare(
    `SELECT ${columns}, lower(hex(id)) FROM investors WHERE id > unhex(?, '-') ORDER BY id LIMIT ?`,
  );
  findRow.setReturnArrays(true);
  listRows.setReturnArrays(true);
  let queue: Lookup[] = [];
  const failed = new Map<string, () => unknown>();

  function findAll(): void {
    const batch = queue;
    queue = [];
    const start = performance.now();
    try {
      if (batch.length > 1) begin.run();
      batch.forEach(findOne);
      if (lookups.isTransaction) rollback.run();
    } catch (error) {
      // Those that are settled stay as they are.
      for (const { reject } of batch) reject(error);
    }
    observe("find", (performance.now() - start) / 1_000, batch.length);
  }

  function findOne({ id, resolve, reject }: Lookup): void {
    const read = () => findRow.get(id) as SQLOutputValue[] | undefined;
    try {
      const row = read();
      resolve(row && toInvestor(id, row));
    } catch (error) {
      remember(`find ${id}`, read, error);
      reject(error);
    }
  }

  function remember(key: string, read: () => unknown, error: unknown): void {
    // A file that is locked for a moment can be read.
    if (failed.size < maxFailed && resultCodeOf(error) !== resultCode.busy) failed.set(key, read);
  }

  return {
    /** Looks a record up. */
    find(lookup: Lookup): void {
      if (queue.push(lookup) === 1) setImmediate(findAll);
    },

    /** At most `limit` records after `after`. */
    list({ after, limit }: Range): Investor[] {
      const start = performance.now();
      // Every id is greater than the empty blob.
      const read = () => listRows.all(after ?? "", limit) as unknown as SQLOutputValue[][];
      let rows: SQLOutputValue[][];
      try {
        rows = read();
      } catch (error) {
        remember(`list ${limit} ${after}`, read, error);
        throw error;
      } finally {
        observe("list", (performance.now() - start) / 1_000);
      }
      return rows.map((row) => toInvestor(uuidFromHex(row.at(-1) as string), row));
    },

    /** Repeats the reads that failed and has not seen succeed since. */
    check(): void {
      const start = performance.now();
      try {
        // A page that was misread stays in SQLite's cache.
        if (failed.size > 0) for (const db of [lookups, pages]) db.exec("PRAGMA shrink_memory");
        for (const [key, read] of failed) {
          read();
          failed.delete(key);
        }
        listRows.all("", 1);
      } finally {
        observe("check", (performance.now() - start) / 1_000);
      }
    },
  };
}

function toInvestor(id: string, row: SQLOutputValue[]): Investor {
  const investor = create(InvestorSchema);
  investor.id = id;
  investor.type = row[0] as number;
  for (let i = 0; i < textFields.length; i += 1) {
    investor[textFields[i] as TextField] = row[i + 1] as string;
  }
  return investor;
}
