import { ConfigError } from "./config.ts";
import { databaseNames, readVariable } from "./copy/sides.ts";
import { databaseUrlFault, sqlitePathOf, withoutSecrets } from "./database-url.ts";
import { isUuid } from "./service/ids.ts";
import { countCommit } from "./store/commit-count.ts";
import { collectionName, toKey } from "./store/mongodb.ts";
import { createMongoClient } from "./store/mongodb-client.ts";
import { explainError } from "./store/sqlite-errors.ts";
import { busyTimeoutMs, openSqliteFile, openSqliteFileToRead } from "./store/sqlite-file.ts";
import { DatabaseUrlError } from "./store/store.ts";

/** The time that MongoDB may take to be found, and to make the removal durable, in milliseconds. */
const mongoTimeoutMs = 15_000;

interface RemoveOptions {
  database: string;
  id: string;
  environment: NodeJS.ProcessEnv;
  /** Prints a line for the user. */
  say(line: string): void;
}

/**
 * Removes one record from a database for good.
 *
 * @returns whether it was there and nothing of it is left
 * @throws {ConfigError} an argument is wrong, and nothing was done
 */
export async function runRemove(options: RemoveOptions): Promise<boolean> {
  const { environment, say } = options;
  const url = readVariable("DATABASE", options.database, environment);
  // The value may hold a password, and is not repeated.
  const fault = databaseUrlFault(url, databaseNames);
  if (fault) throw new ConfigError(`DATABASE ${fault}`);
  if (!isUuid(options.id)) throw new ConfigError("ID must be a UUID");
  const id = options.id.toLowerCase();
  const name = withoutSecrets(url);
  const path = sqlitePathOf(url);
  try {
    const isRemoved = path ? await removeFromSqlite(path, id) : await removeFromMongo(url, id);
    if (isRemoved) say(`removed ${id} from ${name}; a repeat of its create would store it again`);
    else say(`error: ${name} has no record ${id}`);
    return isRemoved;
  } catch (error) {
    const message = `cannot remove from ${name}: ${explainError(error).replaceAll(/\s+/g, " ")}`;
    if (error instanceof DatabaseUrlError) throw new ConfigError(message);
    say(`error: ${message}`);
    return false;
  }
}

/** Removes a record from a file, also beside a service that uses it. */
async function removeFromSqlite(path: string, id: string): Promise<boolean> {
  // Refuses a file that is missing, and one of another program, before anything changes.
  openSqliteFileToRead(path).close();
  const db = await openSqliteFile(path, () => {}, busyTimeoutMs);
  try {
    db.exec("PRAGMA secure_delete = ON");
    const inId = "WHERE id = unhex(?, '-')";
    db.exec("BEGIN IMMEDIATE; CREATE TABLE IF NOT EXISTS removed (id BLOB)");
    const { changes } = db.prepare(`DELETE FROM investors ${inId}`).run(id);
    // A start that finds this in the log does not miss the record in it, nor does a repeat.
    if (changes === 1) db.prepare("INSERT INTO removed VALUES (unhex(?, '-'))").run(id);
    const isRemoved = db.prepare(`SELECT 1 FROM removed ${inId}`).get(id) !== undefined;
    countCommit(db);
    db.exec("COMMIT");
    // Where pages were split, copies of records are left in space that is not in use.
    db.exec("VACUUM");
    const checkpoint = db.prepare("PRAGMA wal_checkpoint(TRUNCATE)").get();
    if (checkpoint?.busy !== 0) {
      throw new Error("a reader keeps the log, which may hold a copy of it: repeat the command");
    }
    db.prepare(`DELETE FROM removed ${inId}`).run(id);
    return isRemoved;
  } finally {
    db.close();
  }
}

async function removeFromMongo(url: string, id: string): Promise<boolean> {
  const { client, db, connect } = createMongoClient(url, mongoTimeoutMs);
  try {
    await connect();
    const { deletedCount } = await db
      .collection(collectionName)
      .deleteOne(
        { _id: toKey(id) },
        { writeConcern: { w: "majority", j: true, wtimeoutMS: mongoTimeoutMs } },
      );
    return deletedCount === 1;
  } finally {
    await client.close();
  }
}
