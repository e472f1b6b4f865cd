import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { buffer } from "node:stream/consumers";
import { ConfigError } from "./config.ts";

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
interface Source {
  /** Its name in the log. */
  name: string;
  /** Whether its files may hold something else than when this was last asked. */
  hasChanged(): Promise<boolean>;
  /**
   * Reads them; absent if there are none.
   *
   * @throws {Error} they cannot be used; what was read before stays in use
   */
  reload: (() => Promise<void>) | undefined;
}

/** What was read again, and what could not be used. */
export interface Reloaded {
  reloaded: string[];
  errors: Error[];
}

/**
 * Creates what reads all sources again or, if asked, those alone that have changed or could not be
 * used. In the latter case it reports the same error once.
 */
export function createReload(sources: Source[]) {
  const faults = new Map<Source, string>();
  return async (onlyChanged = false): Promise<Reloaded> => {
    const reloaded: string[] = [];
    const errors: Error[] = [];
    for (const source of sources) {
      if (source.reload === undefined) continue;
      const hasChanged = await source.hasChanged();
      const fault = faults.get(source);
      if (onlyChanged && !hasChanged && fault === undefined) continue;
      try {
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

/**
 * Follows files, also where symbolic links lead to others.
 *
 * @returns what tells whether one of them has changed since this, or it, was last called
 */
export async function followFiles(paths: (string | undefined)[]): Promise<() => Promise<boolean>> {
  const describe = async (path = "") => {
    const { dev, ino, size, mtimeNs } = await stat(path, { bigint: true });
    return [dev, ino, size, mtimeNs].join();
  };
  const look = () => Promise.all(paths.map((path) => describe(path).catch(({ code }) => code)));
  let seen = String(await look());
  return async () => {
    const before = seen;
    seen = String(await look());
    return seen !== before;
  };
}
