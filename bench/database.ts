import { DatabaseSync } from "node:sqlite";
import { MongoClient, UUID } from "mongodb";
import { v7 } from "uuid";
import { content } from "./content.ts";
import type { Known } from "./work.ts";

/** A database as the benchmark looks at it and fills it, past any server. */
export interface Database {
  readonly url: string;
  count(): Promise<number>;
  /** Some records that are there, spread over all. */
  sample(size: number): Promise<Known[]>;
  /** Two records that follow each other in the order of ids, behind `offset` others. */
  at(offset: number): Promise<[Known, Known]>;
  /** Adds records. */
  fill(count: number): Promise<void>;
  close(): Promise<void>;
}

/** A database of MongoDB. */
export interface MongoDatabase extends Database {
  /** The version of the server. */
  version(): Promise<string>;
}

const { type: _, ...texts } = content;
const nameOf = (n: number) => `filled.${n}`.padEnd(24, "_");

/** A database of a MongoDB. */
export async function mongoDatabase(url: string): Promise<MongoDatabase> {
  const client = await MongoClient.connect(url);
  const collection = client.db().collection<{ _id: UUID; firstName: string }>("investors");
  const toKnown = (document: { _id: unknown; firstName: string }): Known => ({
    id: String((document._id as UUID).toString("hex")).replace(
      /^(.{8})(.{4})(.{4})(.{4})/,
      "$1-$2-$3-$4-",
    ),
    firstName: document.firstName,
  });
  return {
    url,
    count: () => collection.countDocuments(),
    async sample(size) {
      const documents = await collection.aggregate([{ $sample: { size } }]).toArray();
      return documents.map((document) => toKnown(document as { _id: unknown; firstName: string }));
    },
    async at(offset) {
      const found = await collection.find().sort({ _id: 1 }).skip(offset).limit(2).toArray();
      return found.map(toKnown) as [Known, Known];
    },
    async fill(count) {
      for (let done = 0; done < count; done += 10_000) {
        const batch = Array.from({ length: Math.min(10_000, count - done) }, (_, i) => ({
          _id: new UUID(v7()),
          type: "individual",
          ...texts,
          firstName: nameOf(done + i),
        }));
        await collection.insertMany(batch, { ordered: false });
      }
    },
    version: async () => (await client.db().command({ buildInfo: 1 })).version,
    close: () => client.close(),
  };
}

/** A file of SQLite that the service has made. */
export function sqliteDatabase(path: string): Database {
  const db = new DatabaseSync(path, { timeout: 5_000 });
  const select = "SELECT lower(hex(id)) AS id, first_name FROM investors";
  const toKnown = (row: object): Known => {
    const { id, first_name: firstName } = row as { id: string; first_name: string };
    return { id: id.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-"), firstName };
  };
  return {
    url: `sqlite:${path}`,
    async count() {
      return Number(db.prepare("SELECT count(*) AS n FROM investors").get()?.n);
    },
    async sample(size) {
      return db.prepare(`${select} ORDER BY random() LIMIT ?`).all(size).map(toKnown);
    },
    async at(offset) {
      const rows = db.prepare(`${select} ORDER BY id LIMIT 2 OFFSET ?`).all(offset);
      return rows.map(toKnown) as [Known, Known];
    },
    async fill(count) {
      const insert = db.prepare(`INSERT INTO investors VALUES (${Array(12).fill("?").join(", ")})`);
      db.exec("BEGIN IMMEDIATE");
      for (let n = 0; n < count; n += 1) {
        const id = Buffer.from(v7().replaceAll("-", ""), "hex");
        insert.run(id, 1, ...Object.values({ ...texts, firstName: nameOf(n) }));
      }
      db.exec("COMMIT");
    },
    async close() {
      db.close();
    },
  };
}
