import { DatabaseSync } from "node:sqlite";
import { MongoClient, UUID } from "mongodb";
import { jsonContent, mark } from "./content.ts";
import { startService } from "./server.ts";
import type { Known } from "./work.ts";

/** A database as the benchmark looks at it, past any server. */
export interface Database {
  count(): Promise<number>;
  /** At least so many of the records, if they are there, spread over all and in no order. */
  sample(size: number): Promise<Known[]>;
  close(): Promise<void>;
}

/** Opens a database of MongoDB. */
export async function mongoDatabase(url: string): Promise<Database> {
  const client = await MongoClient.connect(url);
  const collection = client.db().collection<{ _id: UUID; firstName: string }>("investors");
  return {
    count: () => collection.countDocuments(),
    async sample(size) {
      const documents = await collection.aggregate([{ $sample: { size } }]).toArray();
      return documents.map(({ _id, firstName }) => ({ id: _id.toString(), firstName }));
    },
    close: () => client.close(),
  };
}

/**
 * Opens a file of SQLite that a server has made.
 *
 * @param columns those of the id and the name
 */
export function sqliteDatabase(path: string, columns = "id, first_name"): Database {
  const db = new DatabaseSync(path, { timeout: 5_000 });
  return {
    async count() {
      return Number(db.prepare("SELECT count(*) AS n FROM investors").get()?.n);
    },
    async sample(size) {
      // To sort millions by random() takes a minute.
      const step = "(SELECT max(1, count(*) / ?) FROM investors)";
      const some = `SELECT ${columns} FROM investors WHERE random() % ${step} = 0`;
      return db
        .prepare(`${some} ORDER BY random()`)
        .all(size)
        .map((row) => {
          const [id, firstName] = Object.values(row);
          const text = id instanceof Uint8Array ? new UUID(id).toString() : String(id);
          return { id: text, firstName: String(firstName) };
        });
    },
    async close() {
      db.close();
    },
  };
}

/**
 * Has the service make a file of SQLite, and adds records as the service stores them, by one
 * statement, since it takes a minute or two for 20 million.
 */
export async function fillSqlite(path: string, records: number): Promise<void> {
  await startService(`sqlite:${path}`).then((service) => service.stop());
  const db = new DatabaseSync(path);
  // The service takes the file back to its own journal. The file is synced at the end, or the disk
  // would be busy with it while calls are measured.
  db.exec("PRAGMA journal_mode = OFF; PRAGMA synchronous = FULL");
  const { type, firstName, ...others } = jsonContent;
  const insert = db.prepare(`
    WITH RECURSIVE numbers (n) AS
      (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < :records)
    INSERT INTO investors (id, type, first_name, middle_name, last_name, address_line1, address_line2, city, state,
      zip_code, country, language) SELECT
      -- A UUIDv7: its time, sixteen of them in each millisecond, and random bits.
      unhex(printf('%012x7%03x8%.15s', :start + n / 16, n % 16, hex(randomblob(8)))),
      1, substr('filled.' || n || :padding, 1, :length), ${Object.keys(others).map((key) => `:${key}`)}
    FROM numbers`);
  const start = Date.now() - records;
  const padding = "_".repeat(mark.length);
  insert.run({ records, start, padding, length: mark.length, ...others });
  db.close();
}
