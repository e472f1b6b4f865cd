import { databaseUrlFault, databaseUrls, sqlitePathOf } from "../store/database-url.ts";
import type { Store } from "../store/store.ts";
import { type Config, ConfigError } from "./config.ts";
import { followFiles, readSettingFile, type Source } from "./reloaded-files.ts";

/**
 * Reads the server's database URL, which can change at run time if it is in a file.
 *
 * @param onReread called after the file was re-read because MongoDB rejected the user
 * @throws {ConfigError} the file cannot be read or contains no valid URL
 */
export async function readDatabaseUrl(
  { databaseUrl, databaseUrlFile: file }: Config,
  onReread: () => void,
) {
  const flag = file === undefined ? "--database-url" : `--database-url-file ${file}`;
  const inUrl: Source = { name: "certificates for MongoDB", files: await followFiles([]) };
  const ofUrl: Source = { name: "database URL", files: await followFiles([file]) };
  let url = file === undefined ? databaseUrl : await readFile(file);
  let rereading: Promise<void> | undefined;
  let store: Pick<Store, "files" | "reload"> = {};

  async function use(opened: typeof store): Promise<void> {
    store = opened;
    const { files = [] } = store;
    inUrl.files = await followFiles(files);
    inUrl.reload = files.length === 0 ? undefined : reconnect;
  }

  async function reconnect(next?: string): Promise<void> {
    await store.reload?.(next).catch(({ message }) => {
      const what = next === undefined ? `the files that ${flag} names` : flag;
      throw new ConfigError(`${what} cannot be used: ${message}`);
    });
  }

  async function reload(path: string): Promise<boolean> {
    const next = await readFile(path);
    if (next === url) return false;
    if (sqlitePathOf(next) !== sqlitePathOf(url)) {
      throw new ConfigError(`${flag} cannot be used: it names another database`);
    }
    await reconnect(next);
    url = next;
    await use(store);
    return true;
  }

  async function reread(path: string): Promise<void> {
    // If the URL is wrong, the next periodic read logs why.
    if (await reload(path).catch(() => false)) onReread();
    rereading = undefined;
  }

  if (file !== undefined) ofUrl.reload = async () => void (await reload(file));
  return {
    /** The URL at startup. */
    url,
    /** The setting that the URL comes from, for messages. */
    flag,
    /** Sets the store to reload when a file changes. */
    use,
    /** Sources for {@link createReload}. */
    sources: [ofUrl, inUrl],
    /** Re-reads the URL now; absent if no file holds it. */
    reread: file === undefined ? undefined : () => (rereading ??= reread(file)),
  };
}

async function readFile(path: string): Promise<string> {
  const url = String(await readSettingFile("--database-url-file", path)).trim();
  const fault = databaseUrlFault(url, databaseUrls);
  if (fault) throw new ConfigError(`--database-url-file ${path}: its URL ${fault}`);
  return url;
}
