import type { DatabaseSync } from "node:sqlite";
import { setImmediate as nextTurn } from "node:timers/promises";
import { resultCode, resultCodeOf } from "../store/sqlite-errors.ts";
import { openSqliteFileToRead } from "../store/sqlite-file.ts";
import { createSqliteReader } from "../store/sqlite-reader.ts";
import type { Source } from "./copier.ts";
import { identifyFile } from "./endpoint.ts";
import { createPagedSource } from "./paged-source.ts";

const countedAtOnce = 100_000;

/**
 * Opens an SQLite file to copy from. The file is never made or changed, and each page is read in
 * a transaction of its own, so that a service which uses it can bring in its log.
 *
 * @throws {Error} if the file cannot be used
 */
export async function openSqliteSource(path: string): Promise<Source> {
  const db = openSqliteFileToRead(path);
  try {
    const reader = createSqliteReader(db, db, () => {});
    const file = identifyFile({ path });
    return createPagedSource(
      await count(db),
      async (range) => {
        const investors = reader.list(range);
        if (identifyFile({ path }) !== file) throw new Error("it was replaced meanwhile");
        return investors;
      },
      // May be called again.
      async () => db[Symbol.dispose](),
    );
  } catch (error) {
    db.close();
    throw error;
  }
}

/**
 * Counts the records, those beyond a damaged page excepted; never all in one transaction, which can
 * take long.
 */
async function count(db: DatabaseSync): Promise<number> {
  const countNext = db.prepare(
    `SELECT count(*) AS size, max(id) AS last
     FROM (SELECT id FROM investors WHERE id > ? ORDER BY id LIMIT ${countedAtOnce})`,
  );
  let total = 0;
  let last: Uint8Array | undefined = new Uint8Array();
  while (last) {
    try {
      const row = countNext.get(last) as { size: number; last: Uint8Array | undefined };
      total += row.size;
      last = row.last;
    } catch (error) {
      if (resultCodeOf(error) !== resultCode.corrupt) throw error;
      return total;
    }
    await nextTurn();
  }
  return total;
}
