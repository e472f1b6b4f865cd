import type { Store, StoreObserver } from "./store.ts";

/** What {@link openStore} needs. */
export interface OpenStoreOptions {
  /** `sqlite:PATH`, `sqlite:///PATH` from the root, or a connection string of MongoDB. */
  databaseUrl: string;
  /** Timeout of a call, in milliseconds. */
  requestTimeoutMs: number;
  observe: StoreObserver;
  /** Is told after each commit of SQLite whether it could be written. */
  onWrite(isWritable: boolean): void;
  /** Is told what those who run the service should know and change. */
  onWarning(message: string): void;
  /** Called once if the store can go on no more and the process has to end. */
  onFatal(error: Error): void;
}

const sqliteScheme = /^sqlite:(\/\/(?=\/))?/;

/**
 * Opens the store that a database URL names. Only what it needs is loaded.
 *
 * @throws {Error} in plain words, if it cannot be used
 */
export async function openStore(options: OpenStoreOptions): Promise<Store> {
  const { databaseUrl, requestTimeoutMs, observe } = options;
  if (sqliteScheme.test(databaseUrl)) {
    const { createSqliteStore } = await import("./sqlite.ts");
    return createSqliteStore({ ...options, path: databaseUrl.replace(sqliteScheme, "") });
  }
  const { createMongoStore } = await import("./mongodb.ts");
  return createMongoStore({ url: databaseUrl, requestTimeoutMs, observe });
}
