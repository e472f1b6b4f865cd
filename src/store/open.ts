import { createSqliteStore } from "./sqlite.ts";
import type { Store } from "./store.ts";

/**
 * Opens the store that a database URL names: `sqlite:` and the path of a file.
 *
 * @param onFatal called once if the store can go on no more and the process has to end
 * @throws {Error} in plain words, if it cannot be used
 */
export async function openStore(url: string, onFatal: (error: Error) => void): Promise<Store> {
  return createSqliteStore({ path: url.slice("sqlite:".length), onFatal });
}
