import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { buffer } from "node:stream/consumers";
import { ConfigError } from "../config-error.ts";

/** Interval of reading files again, in milliseconds. */
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

/**
 * Reads files again that a server has read; resolves with whether their content was new. FIFOs and the
 * like, which could block, are not read again: what they held stays in use.
 *
 * @throws {ConfigError} they cannot be used; the previous content stays in use
 */
type Reload = () => Promise<boolean>;

/**
 * Reads files that settings name, and uses them.
 *
 * @param files the flags and paths
 * @param use takes the contents, now and whenever they differ from the last that it could use
 * @throws {ConfigError} they cannot be read or used
 */
export async function useFiles(
  files: [flag: string, path: string][],
  use: (contents: Buffer[]) => void | Promise<void>,
): Promise<Reload> {
  let used: Buffer[] = [];
  const reload = async () => {
    const reading = files.map(async ([flag, path], i) => {
      const last = used[i];
      return last && (await isSpecial(path)) ? last : readSettingFile(flag, path);
    });
    const contents = await Promise.all(reading);
    if (contents.every((each, i) => used[i]?.equals(each))) return false;
    await use(contents);
    used = contents;
    return true;
  };
  await reload();
  return reload;
}

async function isSpecial(path: string): Promise<boolean> {
  // Reading it says what is wrong with it.
  const found = await stat(path).catch(() => undefined);
  return found !== undefined && !found.isFile() && !found.isDirectory();
}

/**
 * Creates a function that calls all reloads, by their names in the log. With `isPeriodic`, it reports
 * each error once.
 */
export function createReload(reloads: Record<string, Reload | undefined>) {
  const faults = new Map<string, string>();
  return async (isPeriodic = false) => {
    const reloaded: string[] = [];
    const errors: Error[] = [];
    for (const [name, reload] of Object.entries(reloads)) {
      try {
        if (await reload?.()) reloaded.push(name);
        faults.delete(name);
      } catch (error) {
        const { message } = error as Error;
        if (!isPeriodic || message !== faults.get(name)) errors.push(error as Error);
        faults.set(name, message);
      }
    }
    return { reloaded, errors };
  };
}
