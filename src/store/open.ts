import type { Store, StoreObserver } from "./store.ts";

/** What {@link openStore} needs. */
export interface OpenStoreOptions {
  /** `sqlite:` and the path of a file, or a connection string of MongoDB. */
  databaseUrl: string;
  /** For how long a call may take, in milliseconds. */
  requestTimeoutMs: number;
  observe: StoreObserver;
  /** Called once if the store can go on no more and the process has to end. */
  onFatal(error: Error): void;
}

const sqliteScheme = "sqlite:";

/**
 * Opens the store that a database URL names. Only what it needs is loaded.
 *
 * @throws {Error} in plain words, if it cannot be used
 */
export async function openStore(options: OpenStoreOptions): Promise<Store> {
  const { databaseUrl, requestTimeoutMs, observe, onFatal } = options;
  if (databaseUrl.startsWith(sqliteScheme)) {
    const { createSqliteStore } = await import("./sqlite.ts");
    return createSqliteStore({ path: databaseUrl.slice(sqliteScheme.length), observe, onFatal });
  }
  const { createMongoStore } = await import("./mongodb.ts");
  return createMongoStore({ url: databaseUrl, requestTimeoutMs, observe });
}
