import type { DatabaseSync, SQLOutputValue } from "node:sqlite";
import type { Investor } from "../../../gen/investor/v1/investor_pb.js";
import { uuidFromHex } from "../../investor/ids.ts";
import type { Range } from "../../investor/paging.ts";
import type { StoreObserver } from "../store.ts";
import { selectedFrom, toInvestor } from "./schema.ts";
import { hasCode, resultCode, toFault } from "./sqlite-errors.ts";

interface Lookup {
  id: string;
  resolve(investor: Investor | undefined): void;
  reject(error: unknown): void;
}

/**
 * Reads records on the calling thread; rejects with SQLite's errors. Lookups of one turn of the
 * event loop share a transaction, since locking takes longer than a lookup.
 *
 * @param lookups the connection for lookups by id
 * @param lists the connection for lists
 */
export function createSqliteReader(
  lookups: DatabaseSync,
  lists: DatabaseSync,
  observe: StoreObserver,
) {
  const begin = lookups.prepare("BEGIN");
  const rollback = lookups.prepare("ROLLBACK");
  const selected = selectedFrom(lists);
  // Ids are passed as text: a small buffer per id is slow to create and collect.
  const findRow = lookups.prepare(`SELECT ${selected} FROM investors WHERE id = unhex(?, '-')`);
  const listRows = lists.prepare(
    `SELECT ${selected}, lower(hex(id)) FROM investors WHERE id > unhex(?, '-') ORDER BY id LIMIT ?`,
  );
  findRow.setReturnArrays(true);
  listRows.setReturnArrays(true);
  let queue: Lookup[] = [];

  function findAll(): void {
    const batch = queue;
    queue = [];
    const start = performance.now();
    try {
      try {
        if (batch.length > 1) begin.run();
        batch.forEach(findOne);
      } finally {
        if (lookups.isTransaction) rollback.run();
      }
    } catch (error) {
      // No effect on those already settled.
      for (const { reject } of batch) reject(error);
    }
    observe("find", performance.now() - start, batch.length);
  }

  function findOne({ id, resolve, reject }: Lookup): void {
    try {
      const row = findRow.get(id) as SQLOutputValue[] | undefined;
      resolve(row && toInvestor(id, row));
    } catch (error) {
      // SQLite has waited for ten seconds, and would for each of the others.
      if (hasCode(error, resultCode.protocol)) throw error;
      reject(error);
    }
  }

  return {
    find(lookup: Lookup): void {
      if (queue.push(lookup) === 1) setImmediate(findAll);
    },

    list({ after, limit }: Range, operation: "list" | "check" = "list"): Investor[] {
      const start = performance.now();
      try {
        // Every id is greater than the empty blob.
        const rows = listRows.all(after ?? "", limit) as unknown as SQLOutputValue[][];
        const investors = rows.map((row) => toInvestor(uuidFromHex(row.at(-1) as string), row));
        expectOrder(investors, after);
        return investors;
      } catch (error) {
        if (operation === "check" || !hasCode(error, resultCode.corrupt)) throw error;
        throw damageAfter(after, toFault(error));
      } finally {
        observe(operation, performance.now() - start);
      }
    },
  };
}

/**
 * Refuses rows in the wrong order, which could make paging endless, and ids that are not UUIDs.
 *
 * @throws {Error} the ids do not ascend strictly beyond `after`, or one is not a UUID
 */
function expectOrder(page: Investor[], after: string | undefined): void {
  let last = after ?? "";
  for (const { id } of page) {
    if (id <= last || id.length !== 36) throw damageAfter(last, new Error(`the next id is ${id}`));
    last = id;
  }
}

/** The error for a list that meets damage after the record with this id, or at the first record. */
function damageAfter(after: string | undefined, cause: unknown): Error {
  const where = after ? `after the id ${after}` : "at the first record";
  return new Error(`the database is damaged ${where}: ${(cause as Error).message}`, { cause });
}
