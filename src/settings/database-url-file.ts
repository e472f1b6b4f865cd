import { databaseUrlFault, databaseUrls } from "../store/database-url.ts";
import { type Config, ConfigError } from "./config.ts";
import { readSettingFile } from "./reloaded-files.ts";

/**
 * The database URL of the settings, which may be in a file.
 *
 * @throws {ConfigError} the file cannot be read or contains no valid URL; the URL is not repeated
 */
export async function readDatabaseUrl({ databaseUrl, databaseUrlFile: file }: Config) {
  if (file === undefined) return databaseUrl;
  const url = String(await readSettingFile("--database-url-file", file)).trim();
  const fault = databaseUrlFault(url, databaseUrls);
  if (fault) throw new ConfigError(`--database-url-file ${file}: its URL ${fault}`);
  return url;
}
