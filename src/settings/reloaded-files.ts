import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { buffer } from "node:stream/consumers";
import { ConfigError } from "./config.ts";

/** How often the files are checked for changes, in milliseconds. */
export const reloadIntervalMs = 30_000;

/** More than any certificates or tokens take, and little for a server. */
const maxMb = 16;

/**
 * Reads a file that a setting names.
 *
 * @throws {ConfigError} it cannot be read, or is too large
 */
export async function readSettingFile(flag: string, path: string): Promise<Buffer> {
  const maxBytes = maxMb * 1024 * 1024;
  // One byte more than it may have.
  const bytes = await buffer(createReadStream(path, { end: maxBytes })).catch(({ code }) => {
    throw new ConfigError(`${flag} ${path} cannot be read (${code})`);
  });
  if (bytes.length <= maxBytes) return bytes;
  throw new ConfigError(`${flag} ${path} holds more than ${maxMb} MiB`);
}

/** What a server has read from files and can read again. */
export interface Source {
  /** Its name in the log. */
  name: string;
  files: FollowedFiles;
  /**
   * Reads them; absent if there are none.
   *
   * @throws {Error} they cannot be used; what was read before stays in use
   */
  reload?: (() => Promise<void>) | undefined;
}

/**
 * Creates what reads all sources again or, if asked, those alone that have changed or could not be
 * used. In the latter case it reports the same error once. What cannot be used stays as it was.
 */
export function createReload(sources: Source[]) {
  const faults = new Map<Source, string>();
  return async (onlyChanged = false) => {
    const reloaded: string[] = [];
    const errors: Error[] = [];
    for (const source of sources) {
      if (source.reload === undefined) continue;
      const hasChanged = await source.files.haveChanged();
      const fault = faults.get(source);
      if (onlyChanged && !hasChanged && fault === undefined) continue;
      try {
        source.files.expectRegular();
        await source.reload();
        faults.delete(source);
        reloaded.push(source.name);
      } catch (error) {
        const { message } = error as Error;
        faults.set(source, message);
        if (!onlyChanged || message !== fault) errors.push(error as Error);
      }
    }
    return { reloaded, errors };
  };
}

/** Files that are followed, also where symbolic links lead to others. */
type FollowedFiles = Awaited<ReturnType<typeof followFiles>>;

/** Looks at files and follows them from now on. */
export async function followFiles(paths: (string | undefined)[]) {
  let special: string | undefined;
  const lookAt = async (path = "") => {
    const found = await stat(path, { bigint: true });
    if (found.isFile() || found.isDirectory()) {
      return [found.dev, found.ino, found.size, found.mtimeNs].join();
    }
    special = path;
    return "special";
  };
  const look = () => Promise.all(paths.map((path) => lookAt(path).catch(({ code }) => code)));
  let seen = String(await look());
  return {
    /** Looks at them, and tells whether one has changed since they were last looked at. */
    async haveChanged(): Promise<boolean> {
      const before = seen;
      special = undefined;
      seen = String(await look());
      return seen !== before;
    },
    /**
     * Makes sure that all of them can be read again, as far as was last seen.
     *
     * @throws {Error} one is a FIFO or the like, which would be waited for
     */
    expectRegular(): void {
      if (special === undefined) return;
      throw new Error(`${special} is not a regular file, and only those are read again`);
    },
  };
}
