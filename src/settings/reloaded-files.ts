import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { buffer } from "node:stream/consumers";
import { ConfigError } from "./config.ts";

/** Interval of checks for changed files, in milliseconds. */
export const reloadIntervalMs = 30_000;

/** More than any certificates or tokens need, and little memory for a server. */
const maxMb = 16;

/**
 * Reads a file that a setting names.
 *
 * @throws {ConfigError} it cannot be read, or is too large
 */
export async function readSettingFile(flag: string, path: string): Promise<Buffer> {
  const maxBytes = maxMb * 1024 * 1024;
  // `end` is inclusive, so this reads one byte too many.
  const bytes = await buffer(createReadStream(path, { end: maxBytes })).catch(({ code }) => {
    throw new ConfigError(`${flag} ${path} cannot be read (${code})`);
  });
  if (bytes.length <= maxBytes) return bytes;
  throw new ConfigError(`${flag} ${path} holds more than ${maxMb} MiB`);
}

/** Settings that a server has read from files and can re-read. */
export interface Source {
  /** The name in the log. */
  name: string;
  files: Awaited<ReturnType<typeof followFiles>>;
  /**
   * Re-reads the files; absent if there are none.
   *
   * @throws {Error} they cannot be used; the previous content stays in use
   */
  reload?: (() => Promise<void>) | undefined;
}

/**
 * Creates a function that re-reads all sources or, with `onlyChanged`, those that have changed or failed
 * before. With `onlyChanged`, it reports each error once. A source that fails keeps its previous content.
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

/** Starts to watch files for changes, including changed targets of symbolic links. */
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
    /** Checks whether any file has changed since the last check. */
    async haveChanged(): Promise<boolean> {
      const before = seen;
      special = undefined;
      seen = String(await look());
      return seen !== before;
    },
    /**
     * Checks that all files were regular at the last check.
     *
     * @throws {Error} one is a FIFO or the like, and reading it could block
     */
    expectRegular(): void {
      if (special === undefined) return;
      throw new Error(`${special} is not a regular file, and only those are read again`);
    },
  };
}
