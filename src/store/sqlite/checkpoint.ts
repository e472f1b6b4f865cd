import { realpathSync, statfsSync } from "node:fs";
import type { DatabaseSync } from "node:sqlite";
import { setTimeout as delay } from "node:timers/promises";
import { pragma } from "./commit-count.ts";
import { openSqliteFile } from "./file.ts";
import { explainError } from "./sqlite-errors.ts";

/** WAL frames that trigger a checkpoint; the same as SQLite's default. */
const maxFrames = 1_000;

/** The share of its disk that the WAL may take before a checkpoint. */
const maxPart = 1 / 16;

/** Interval at which to retry a checkpoint that other connections block, in milliseconds. */
const retryMs = 20;

/**
 * Checkpoints for a connection that commits, in place of SQLite's automatic ones, which delay the commit
 * and whose failures are silent. They never wait for other connections; frames that those still read stay
 * in the WAL.
 *
 * @param onFailure called with the reason whenever a checkpoint fails; nothing is lost by that
 * @returns a function to call once a commit has been acknowledged
 */
export function createCheckpoints(
  db: DatabaseSync,
  path: string,
  onFailure: (why: string) => void,
): () => void {
  db.exec("PRAGMA wal_autocheckpoint = 0");
  const pageSize = pragma(db, "page_size");
  const walState = db.prepare("PRAGMA wal_checkpoint(NOOP)");
  const checkpoint = db.prepare("PRAGMA wal_checkpoint(PASSIVE)");

  /** On a small disk, a WAL of the usual size would leave the file no room to grow. */
  function framesOfDisk(): number {
    const { blocks, bsize } = statfsSync(path);
    // Some file systems do not report their size.
    return Math.min(maxFrames, ((blocks * bsize || Infinity) * maxPart) / pageSize);
  }

  let frames = framesOfDisk();
  return () => {
    if (Number(walState.get()?.log) < frames) return;
    try {
      checkpoint.get();
      frames = framesOfDisk();
    } catch (error) {
      onFailure(explainError(error));
    }
  };
}

/**
 * Moves the whole WAL into the file, including commits that others make meanwhile, and truncates
 * it. Readers in other connections can prevent that.
 *
 * @param timeoutMs how long to wait for other connections
 * @returns whether the WAL is empty
 */
export async function emptyWal(db: DatabaseSync, timeoutMs: number): Promise<boolean> {
  // A checkpoint that waits would block other writers.
  db.exec("PRAGMA busy_timeout = 0");
  const checkpoint = db.prepare("PRAGMA wal_checkpoint(TRUNCATE)");
  const end = performance.now() + timeoutMs;
  while (checkpoint.get()?.busy !== 0) {
    if (performance.now() > end) return false;
    await delay(retryMs);
  }
  return true;
}

/**
 * Moves the WAL of a file that this process has closed into it.
 *
 * @param timeoutMs how long to wait for other processes
 * @throws {Error} for operators, if the file still needs its WAL
 */
export async function mergeWal(path: string, timeoutMs: number): Promise<void> {
  let why = "another process reads the file; end it and repeat the command";
  try {
    const { db } = await openSqliteFile(path, () => {}, timeoutMs);
    if (await emptyWal(db, timeoutMs).finally(() => db.close())) return;
  } catch (error) {
    why = explainError(error);
  }
  throw new Error(
    `it is complete only with ${realpathSync(path)}-wal, which cannot be checkpointed: ${why}`,
  );
}
