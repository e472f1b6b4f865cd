import { DatabaseSync } from "node:sqlite";
import { MongoClient, UUID } from "mongodb";

/** Records as a peer keeps them: one statement a call, as durable as those of the service. */
export interface Records {
  insert(id: string, content: object): Promise<void>;
  find(id: string): Promise<object | undefined>;
}

/** Opens the database of a URL. */
export async function openRecords(url: string): Promise<Records> {
  return url.startsWith("sqlite:") ? openSqlite(url.slice("sqlite:".length)) : openMongo(url);
}

async function openMongo(url: string): Promise<Records> {
  const client = await MongoClient.connect(url);
  const collection = client.db().collection<{ _id: UUID }>("investors", {
    writeConcern: { w: "majority" },
    readConcern: { level: "majority" },
  });
  return {
    async insert(id, content) {
      await collection.insertOne({ _id: new UUID(id), ...content });
    },
    async find(id) {
      const document = await collection.findOne({ _id: new UUID(id) }, { projection: { _id: 0 } });
      return document ?? undefined;
    },
  };
}

function openSqlite(path: string): Records {
  const db = new DatabaseSync(path);
  db.exec("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL");
  db.exec(
    "CREATE TABLE IF NOT EXISTS investors (id TEXT PRIMARY KEY, content TEXT) STRICT, WITHOUT ROWID",
  );
  const insert = db.prepare("INSERT INTO investors VALUES (?, ?)");
  const find = db.prepare("SELECT content FROM investors WHERE id = ?");
  return {
    async insert(id, content) {
      insert.run(id, JSON.stringify(content));
    },
    async find(id) {
      const row = find.get(id);
      return row && JSON.parse(String(row.content));
    },
  };
}
