import type { DatabaseSync, SQLOutputValue } from "node:sqlite";
import { create } from "@bufbuild/protobuf";
import { type Investor, InvestorSchema } from "../../gen/investor/v1/investor_pb.js";
import { textFields } from "../investor.ts";
import { uuidFromHex, uuidToBytes } from "../uuid.ts";
import type { Range, StoreObserver } from "./store.ts";

/** Reads records on the calling thread. */
export interface SqliteReader {
  /** The record with this id, or undefined; rejects with the error of SQLite. */
  find(id: string): Promise<Investor | undefined>;
  /** At most `limit` records behind `after`; throws the error of SQLite. */
  list(range: Range): Investor[];
}

interface Lookup {
  id: string;
  resolve(investor: Investor | undefined): void;
  reject(error: unknown): void;
}

/** Ids are read as hexadecimal text: a small buffer for each is slow to make and to collect. */
const select = `SELECT lower(hex(id)), type, first_name, middle_name, last_name, address_line1,
  address_line2, city, state, zip_code, country, language FROM investors`;

/**
 * Makes a reader. What is looked up in one turn of the event loop shares a transaction, since
 * its locks take longer than a lookup.
 */
export function createSqliteReader(db: DatabaseSync, observe: StoreObserver): SqliteReader {
  const begin = db.prepare("BEGIN");
  const rollback = db.prepare("ROLLBACK");
  const findRow = db.prepare(`${select} WHERE id = ?`);
  const listRows = db.prepare(`${select} WHERE id > ? ORDER BY id LIMIT ?`);
  findRow.setReturnArrays(true);
  listRows.setReturnArrays(true);
  let lookups: Lookup[] = [];

  function findAll(): void {
    const batch = lookups;
    lookups = [];
    const start = performance.now();
    try {
      if (batch.length > 1) begin.run();
      batch.forEach(findOne);
      if (db.isTransaction) rollback.run();
    } catch (error) {
      // Those that are settled stay as they are.
      for (const { reject } of batch) reject(error);
    }
    observe("find", (performance.now() - start) / 1_000, batch.length);
  }

  function findOne({ id, resolve, reject }: Lookup): void {
    try {
      const row = findRow.get(uuidToBytes(id)) as SQLOutputValue[] | undefined;
      resolve(row && toInvestor(row));
    } catch (error) {
      reject(error);
    }
  }

  return {
    find: (id) =>
      new Promise((resolve, reject) => {
        if (lookups.push({ id, resolve, reject }) === 1) setImmediate(findAll);
      }),
    list({ after, limit }) {
      const start = performance.now();
      const rows = listRows.all(after === undefined ? new Uint8Array() : uuidToBytes(after), limit);
      observe("list", (performance.now() - start) / 1_000);
      return (rows as unknown as SQLOutputValue[][]).map(toInvestor);
    },
  };
}

function toInvestor([id, type, ...texts]: SQLOutputValue[]): Investor {
  const investor = create(InvestorSchema);
  investor.id = uuidFromHex(id as string);
  investor.type = type as number;
  for (const [i, field] of textFields.entries()) investor[field] = texts[i] as string;
  return investor;
}
