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
  const path = sqlitePathOf(databaseUrl);
  if (path !== undefined) {
    const { createSqliteStore } = await import("./sqlite.ts");
    return createSqliteStore({ ...options, path });
  }
  const { createMongoStore } = await import("./mongodb.ts");
  return createMongoStore({ url: databaseUrl, requestTimeoutMs, observe });
}

/** The path that a database URL names, or undefined if it names no SQLite file. */
export function sqlitePathOf(databaseUrl: string): string | undefined {
  return sqliteScheme.test(databaseUrl) ? databaseUrl.replace(sqliteScheme, "") : undefined;
}
