import type { Store, StoreOptions } from "./store.ts";

const sqliteScheme = /^sqlite:(\/\/(?=\/))?/;

/**
 * Opens the store that a database URL names: `sqlite:PATH`, `sqlite:///PATH` from the root, or
 * a connection string of MongoDB. Only what it needs is loaded.
 *
 * @throws {Error} in plain words, if it cannot be used
 */
export async function openStore(databaseUrl: string, options: StoreOptions): Promise<Store> {
  if (sqliteScheme.test(databaseUrl)) {
    const { createSqliteStore } = await import("./sqlite.ts");
    return createSqliteStore(databaseUrl.replace(sqliteScheme, ""), options);
  }
  const { createMongoStore } = await import("./mongodb.ts");
  return createMongoStore(databaseUrl, options);
}
