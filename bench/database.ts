import { DatabaseSync } from "node:sqlite";
import { MongoClient, type UUID } from "mongodb";
import { v7 } from "uuid";
import { jsonContent, mark } from "./content.ts";
import { startService } from "./server.ts";
import type { Known } from "./work.ts";

/** A database as the benchmark looks at it, past any server. */
export interface Database {
  count(): Promise<number>;
  /** Some records that are there, spread over all. */
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
      return documents.map(({ _id, firstName }) => ({
        id: toText(_id.toString("hex")),
        firstName,
      }));
    },
    close: () => client.close(),
  };
}

/**
 * Opens a file of SQLite that a server has made.
 *
 * @param columns those of the id and the name
 */
export function sqliteDatabase(path: string, columns = "hex(id), first_name"): Database {
  const db = new DatabaseSync(path, { timeout: 5_000 });
  return {
    async count() {
      return Number(db.prepare("SELECT count(*) AS n FROM investors").get()?.n);
    },
    async sample(size) {
      const select = `SELECT ${columns} FROM investors ORDER BY random() LIMIT ?`;
      return db
        .prepare(select)
        .all(size)
        .map((row) => {
          const [id = "", firstName = ""] = Object.values(row).map(String);
          return { id: toText(id), firstName };
        });
    },
    async close() {
      db.close();
    },
  };
}

/** Has the service make a file of SQLite, and adds records as the service stores them. */
export async function fillSqlite(path: string, records: number): Promise<void> {
  await startService(`sqlite:${path}`).then((service) => service.stop());
  const db = new DatabaseSync(path);
  const insert = db.prepare(`INSERT INTO investors VALUES (${Array(12).fill("?").join(", ")})`);
  db.exec("BEGIN IMMEDIATE");
  for (let n = 0; n < records; n += 1) {
    const id = Buffer.from(v7().replaceAll("-", ""), "hex");
    const firstName = `filled.${n}`.padEnd(mark.length, "_");
    insert.run(id, ...Object.values({ ...jsonContent, type: 1, firstName }));
  }
  db.exec("COMMIT");
  db.close();
}

/** The canonical text of a UUID in hexadecimal; other ids as they are. */
function toText(id: string): string {
  return /^[0-9A-Fa-f]{32}$/.test(id)
    ? id.toLowerCase().replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-")
    : id;
}
