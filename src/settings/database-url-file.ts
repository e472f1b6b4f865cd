import type { Database } from "../store/database-url.ts";
import { type Config, readDatabase } from "./config.ts";
import { readSettingFile } from "./reloaded-files.ts";

/**
 * The database of the settings, whose URL may be in a file.
 *
 * @throws {ConfigError} the file cannot be read or contains no valid URL; the URL is not repeated
 */
export async function findDatabase({ database, databaseUrlFile: file }: Config): Promise<Database> {
  if (file === undefined) return database;
  const url = String(await readSettingFile("--database-url-file", file)).trim();
  return readDatabase(`--database-url-file ${file}: its URL`, url);
}
