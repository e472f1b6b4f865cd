import { sqlitePathOf } from "../database-url.ts";
import { createSqliteStore } from "./sqlite.ts";
import type { Store, StoreOptions } from "./store.ts";

/**
 * Opens the store that a database URL names: `sqlite:PATH`, `sqlite:///PATH` from the root, or
 * a connection string of MongoDB, whose driver is loaded only then.
 *
 * @throws {ConfigError} the URL is malformed
 * @throws {Error} in plain words, if the store cannot be used
 */
export async function openStore(databaseUrl: string, options: StoreOptions): Promise<Store> {
  const path = sqlitePathOf(databaseUrl);
  if (path !== undefined) return createSqliteStore(path, options);
  const { createMongoStore } = await import("./mongodb.ts");
  return createMongoStore(databaseUrl, options);
}
