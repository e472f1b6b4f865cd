import { lstatSync, realpathSync, statSync } from "node:fs";
import { dirname } from "node:path";

/** How coarse the times of a file system may be, in milliseconds. */
const folderTimeMs = 3_000;

/**
 * Identifies the file, its log and its index that a process would use if it opened the path now.
 * While a connection is open this changes only if one of them is moved, deleted or replaced:
 * SQLite truncates the log, and only the last connection to close deletes both.
 *
 * @throws {Error} one of them is not there
 */
export function identify(path: string): string {
  const file = realpathSync.native(path);
  const inodes = [file, `${file}-wal`, `${file}-shm`].map((name) => {
    const { dev, ino } = lstatSync(name, { bigint: true });
    return `${dev}:${ino}`;
  });
  return [file, ...inodes].join(" ");
}

/** @throws {Error} in plain words, if the path is no longer that of the {@link identify identity} */
export function checkIdentity(path: string, identity: string): void {
  let cause: unknown;
  try {
    if (identify(path) === identity) return;
  } catch (error) {
    cause = error;
  }
  const why = cause instanceof Error ? ` (${cause.message})` : "";
  throw new Error(`${path} or a file beside it was moved, deleted or replaced${why}`, { cause });
}

/**
 * Creates a quick {@link checkIdentity} to run after each commit, which looks closer only if the file
 * is another one or its folder has changed. To look at the log itself would slow the next commit by
 * a quarter: Linux then gives the log a finer change time, which each sync has to write too.
 */
export function createIdentityCheck(path: string, identity: string): () => void {
  let seen = "";

  function look(): { state: string; changedMs: number } | undefined {
    try {
      const name = realpathSync.native(path);
      const file = statSync(name, { bigint: true });
      const { dev, ino, ctimeNs, ctimeMs } = statSync(dirname(name), { bigint: true });
      const state = `${name} ${file.dev}:${file.ino} ${dev}:${ino} ${ctimeNs}`;
      return { state, changedMs: Number(ctimeMs) };
    } catch {
      return undefined;
    }
  }

  return () => {
    const now = look();
    if (now?.state === seen) return;
    checkIdentity(path, identity);
    // A second change, soon after the first, can bear the same time.
    if (now !== undefined && now.changedMs < Date.now() - folderTimeMs) seen = now.state;
  };
}
