import { statfsSync } from "node:fs";
import { open } from "node:fs/promises";
import type { DatabaseSync } from "node:sqlite";
import { setTimeout as delay } from "node:timers/promises";
import { pragma } from "./commit-count.ts";
import { explainError, hasCode, resultCode } from "./sqlite-errors.ts";

/** WAL frames that trigger a checkpoint; the same as SQLite's default. */
const maxFrames = 1_000;

/** The share of its disk that the WAL may take before a checkpoint: with more, a small file has no room to grow. */
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

  const framesOfDisk = () => {
    const { blocks, bsize } = statfsSync(path);
    // Some file systems do not report their size.
    return Math.min(maxFrames, ((blocks * bsize || Infinity) * maxPart) / pageSize);
  };
  let frames = framesOfDisk();
  return () => {
    if (Number(walState.get()?.log) < frames) return;
    try {
      db.exec("PRAGMA wal_checkpoint(PASSIVE)");
      frames = framesOfDisk();
    } catch (error) {
      onFailure(explainError(error));
    }
  };
}

/**
 * Rewrites the bytes of a WAL in place and syncs them, before its first checkpoint here. The sync of the
 * process that wrote them may have failed or never returned. The page cache then regards blocks that the
 * disk lost as written: no later sync would write them, and a power cut during the checkpoint would
 * leave a half-changed file without a WAL to repair it from.
 *
 * Closing the WAL drops no locks, since SQLite has none on it.
 */
export async function rewriteWal(db: DatabaseSync, wal: string): Promise<void> {
  await using file = await open(wal, "r+");
  const chunk = Buffer.alloc(1024 * 1024);
  for (let at = 0, size = 1; size > 0; at += size) {
    // Locked chunk by chunk, and the pause lets other processes commit in between.
    db.exec("BEGIN IMMEDIATE");
    try {
      const { bytesRead } = await file.read(chunk, 0, chunk.length, at);
      size = (await file.write(chunk, 0, bytesRead, at)).bytesWritten;
    } finally {
      db.exec("ROLLBACK");
    }
    await delay(1);
  }
  await file.sync();
}

/**
 * Checkpoints without waiting: what stays in the WAL is durable and readable too.
 *
 * @returns why something stays, if it does
 * @throws {Error} neither a reader nor the disk is the reason
 */
export function checkpoint(db: DatabaseSync): string | undefined {
  try {
    const result = db.prepare("PRAGMA wal_checkpoint(PASSIVE)").get();
    const isWhole = result?.busy === 0 && result.checkpointed === result.log;
    return isWhole ? undefined : "another process reads the file, or its locks fail";
  } catch (error) {
    if (!hasCode(error, resultCode.full, resultCode.ioError)) throw error;
    return explainError(error);
  }
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
  const truncate = db.prepare("PRAGMA wal_checkpoint(TRUNCATE)");
  const end = performance.now() + timeoutMs;
  while (truncate.get()?.busy !== 0) {
    if (performance.now() > end) return false;
    await delay(retryMs);
  }
  return true;
}
