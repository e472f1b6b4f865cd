import { ConfigError } from "./config-error.ts";
import { readArgument } from "./copy/source-and-target.ts";
import { isUuid } from "./investor/ids.ts";
import { createMongoClient } from "./store/mongodb/client.ts";
import { collectionName, toKey } from "./store/mongodb/documents.ts";
import { toWriteError } from "./store/mongodb/mongodb-errors.ts";
import { type RemovalOptions, removeFromSqlite } from "./store/sqlite/removal.ts";
import { explainError } from "./store/sqlite/sqlite-errors.ts";
import { OutcomeUnknownError } from "./store/store.ts";

/** Deadline for connecting to MongoDB, and for making the removal durable, in milliseconds. */
const mongoTimeoutMs = 15_000;

interface RemoveOptions extends Omit<RemovalOptions, "onDeleted"> {
  database: string;
  id: string;
  environment: NodeJS.ProcessEnv;
}

/**
 * Removes one record from a database for good.
 *
 * @returns whether it is removed, or was not there
 * @throws {ConfigError} an argument is wrong, and nothing was done
 */
export async function runRemove(options: RemoveOptions): Promise<boolean> {
  const { environment, say } = options;
  const database = readArgument("DATABASE", options.database, environment);
  if (!isUuid(options.id)) throw new ConfigError("ID must be a UUID");
  const id = options.id.toLowerCase();
  const { name } = database;
  let failed = "cannot remove from";
  const onDeleted = (wasThere: boolean) => {
    say(wasThere ? `removed ${id} from ${name}` : `${name} has no record ${id}`);
    failed = "a copy may be left in";
  };
  try {
    if (database.kind === "mongodb") onDeleted(await removeFromMongo(database.url, id));
    else await removeFromSqlite(database.path, id, { ...options, onDeleted });
    say("a retry of its create would store it again");
    return true;
  } catch (error) {
    if (error instanceof OutcomeUnknownError) failed = `${id} may or may not be removed from`;
    const message = `${failed} ${name}: ${explainError(error).replaceAll(/\s+/g, " ")}`;
    if (error instanceof ConfigError) throw new ConfigError(message);
    say(`error: ${message}`);
    return false;
  }
}

async function removeFromMongo(url: string, id: string): Promise<boolean> {
  const { client, db } = createMongoClient(url, mongoTimeoutMs);
  try {
    await client.connect();
    const { deletedCount } = await db
      .collection(collectionName)
      .deleteOne(
        { _id: toKey(id) },
        { writeConcern: { w: "majority", j: true, wtimeoutMS: mongoTimeoutMs } },
      )
      .catch((error) => {
        throw toWriteError(error);
      });
    return deletedCount === 1;
  } finally {
    await client.close();
  }
}
