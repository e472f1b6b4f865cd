import { DatabaseSync } from "node:sqlite";
import { MongoClient, UUID } from "mongodb";
import { v7 } from "uuid";
import { jsonContent } from "./content.ts";
import type { Known } from "./work.ts";

/** A database as the benchmark looks at it and fills it, past any server. */
export interface Database {
  count(): Promise<number>;
  /** Some records that are there, spread over all. */
  sample(size: number): Promise<Known[]>;
  /** Adds records as the service stores them. */
  fill(count: number): Promise<void>;
  close(): Promise<void>;
}

const nameOf = (n: number) => `filled.${n}`.padEnd(24, "_");

/** A database of MongoDB. */
export interface MongoDatabase extends Database {
  /** The version of the server. */
  version(): Promise<string>;
}

/** Opens a database of MongoDB. */
export async function mongoDatabase(url: string): Promise<MongoDatabase> {
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
    async fill(count) {
      for (let done = 0; done < count; done += 10_000) {
        const batch = Array.from({ length: Math.min(10_000, count - done) }, (_, i) => ({
          _id: new UUID(v7()),
          ...jsonContent,
          firstName: nameOf(done + i),
        }));
        await collection.insertMany(batch, { ordered: false });
      }
    },
    version: async () => (await client.db().command({ buildInfo: 1 })).version,
    close: () => client.close(),
  };
}

/**
 * A file of SQLite that a server has made.
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
          const [id, firstName] = Object.values(row).map(String);
          return { id: toText(id ?? ""), firstName: firstName ?? "" };
        });
    },
    async fill(count) {
      const insert = db.prepare(`INSERT INTO investors VALUES (${Array(12).fill("?").join(", ")})`);
      db.exec("BEGIN IMMEDIATE");
      for (let n = 0; n < count; n += 1) {
        const id = Buffer.from(v7().replaceAll("-", ""), "hex");
        insert.run(id, ...Object.values({ ...jsonContent, type: 1, firstName: nameOf(n) }));
      }
      db.exec("COMMIT");
    },
    async close() {
      db.close();
    },
  };
}

/** The canonical text of a UUID in hexadecimal; other ids as they are. */
function toText(id: string): string {
  return /^[0-9A-Fa-f]{32}$/.test(id)
    ? id.toLowerCase().replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-")
    : id;
}
