import { realpathSync, statfsSync } from "node:fs";
import type { DatabaseSync } from "node:sqlite";
import { setTimeout as delay } from "node:timers/promises";
import { pragma } from "./commit-count.ts";
import { explainError } from "./errors.ts";
import { openSqliteFile } from "./file.ts";
import { sizeOf } from "./paths.ts";

/** From how many frames on the WAL is brought in, as SQLite would do it by itself. */
const maxFrames = 1_000;

/** The part of its disk that the WAL may take before that. */
const maxPart = 1 / 16;

/** How long after one that failed no checkpoint is tried, in milliseconds: each can take seconds. */
const pauseMs = 10_000;

/**
 * Creates the checkpoints of a connection that commits, in place of SQLite's own, which say nothing
 * if they fail. None waits for others, and what they read stays in the WAL.
 *
 * @param onFailure called with why the WAL could not be brought in; nothing is lost by that
 */
export function createCheckpoints(
  db: DatabaseSync,
  path: string,
  onFailure: (why: string) => void,
) {
  db.exec("PRAGMA wal_autocheckpoint = 0");
  const { blocks, bsize } = statfsSync(path);
  // On a small disk, a WAL of the usual size would leave no room for the file.
  const frames = Math.min(maxFrames, (blocks * bsize * maxPart) / pragma(db, "page_size"));
  const look = db.prepare("PRAGMA wal_checkpoint(NOOP)");
  const checkpoint = db.prepare("PRAGMA wal_checkpoint(PASSIVE)");
  let notBefore = 0;

  function bringIn(): void {
    try {
      checkpoint.get();
    } catch (error) {
      notBefore = performance.now() + pauseMs;
      onFailure(explainError(error));
    }
  }

  return {
    /** Brings the WAL in if it has become large. To be called when a commit has been acknowledged. */
    afterCommit(): void {
      if (performance.now() < notBefore) return;
      if (Number(look.get()?.log) >= frames) bringIn();
    },
    /** Brings all of it in. To be called before the connection closes, which says nothing of failures. */
    beforeClose: bringIn,
  };
}

/** How often a checkpoint that others hold up is tried again, in milliseconds. */
const retryMs = 20;

/**
 * Brings all of the WAL into the file, and truncates it. What others commit meanwhile is brought in
 * too; what they read can keep it from that.
 *
 * @param timeoutMs how long others may hold it up
 * @returns whether it is done
 */
export async function emptyWal(db: DatabaseSync, timeoutMs: number): Promise<boolean> {
  // A checkpoint that waits for others keeps those out that write.
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
 * Sees to it that a file which this process has closed holds by itself all that was written to it.
 * SQLite brings the WAL in when the last connection closes, but says nothing if that fails.
 *
 * @param timeoutMs how long other processes may hold that up
 * @throws {Error} for operators, if it needs its WAL still
 */
export async function bringInWal(path: string, timeoutMs: number): Promise<void> {
  const wal = `${realpathSync(path)}-wal`;
  // SQLite truncates or deletes it only once all of it is in the file, and synced.
  if (sizeOf(wal) === 0) return;
  let why = "another process reads the file; end it and repeat the command";
  try {
    const { db } = await openSqliteFile(path, () => {}, timeoutMs);
    if (await emptyWal(db, timeoutMs).finally(() => db.close())) return;
  } catch (error) {
    why = explainError(error, path);
  }
  throw new Error(`it is whole only with ${wal}, which cannot be brought into it: ${why}`);
}
