import { realpathSync, statfsSync } from "node:fs";
import type { DatabaseSync } from "node:sqlite";
import { setTimeout as delay } from "node:timers/promises";
import { pragma } from "./commit-count.ts";
import { explainError } from "./errors.ts";
import { openSqliteFile } from "./file.ts";
import { sizeOf } from "./paths.ts";

/** WAL frames that trigger a checkpoint; the same as SQLite's default. */
const maxFrames = 1_000;

/** The share of its disk that the WAL may take before a checkpoint. */
const maxPart = 1 / 16;

/** Pause after a failed checkpoint, in milliseconds: each can take seconds. */
const pauseMs = 10_000;

/** Interval at which to retry a checkpoint that other connections block, in milliseconds. */
const retryMs = 20;

/** How long to retry before closing, in milliseconds: longer than a checkpoint of another process takes. */
const lockMs = 1_000;

/**
 * Checkpoints for a connection that commits, in place of SQLite's automatic ones, whose failures
 * are silent. They never wait for other connections; frames that those still read stay in the WAL.
 *
 * @param onFailure called with the reason when a checkpoint fails; nothing is lost by that
 */
export function createCheckpoints(
  db: DatabaseSync,
  path: string,
  onFailure: (why: string) => void,
) {
  db.exec("PRAGMA wal_autocheckpoint = 0");
  const { blocks, bsize } = statfsSync(path);
  // On a small disk, a WAL of the usual size would leave the file no room to grow.
  const frames = Math.min(maxFrames, (blocks * bsize * maxPart) / pragma(db, "page_size"));
  const look = db.prepare("PRAGMA wal_checkpoint(NOOP)");
  const checkpoint = db.prepare("PRAGMA wal_checkpoint(PASSIVE)");
  let notBefore = 0;

  function bringIn(): "whole" | "in part" | "locked" | Error {
    try {
      const result = checkpoint.get();
      // SQLite reports its lock, if taken by others, without an error.
      if (result?.busy !== 0) return "locked";
      return result.checkpointed === result.log ? "whole" : "in part";
    } catch (error) {
      return error as Error;
    }
  }

  return {
    /** Checkpoints the WAL if it has become large. Call it once a commit has been acknowledged. */
    afterCommit(): void {
      if (performance.now() < notBefore) return;
      if (Number(look.get()?.log) < frames) return;
      const result = bringIn();
      if (!(result instanceof Error)) return;
      notBefore = performance.now() + pauseMs;
      onFailure(explainError(result));
    },
    /**
     * Checkpoints all of the WAL, or what others do not read. Call it before closing, which would not
     * report a failure.
     */
    async beforeClose() {
      const end = performance.now() + lockMs;
      for (;;) {
        const result = bringIn();
        if (result === "whole" || result instanceof Error || performance.now() > end) return result;
        await delay(retryMs);
      }
    },
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
 * Makes sure that a file which this process has closed is complete without its WAL. SQLite
 * checkpoints when the last connection closes, but fails silently.
 *
 * @param timeoutMs how long to wait for other processes
 * @throws {Error} for operators, if the file still needs its WAL
 */
export async function bringInWal(path: string, timeoutMs: number): Promise<void> {
  const wal = `${realpathSync(path)}-wal`;
  // SQLite truncates or deletes the WAL only after writing all of it to the file and syncing.
  if (sizeOf(wal) === 0) return;
  let why = "another process reads the file; end it and repeat the command";
  try {
    const { db } = await openSqliteFile(path, () => {}, timeoutMs);
    if (await emptyWal(db, timeoutMs).finally(() => db.close())) return;
  } catch (error) {
    why = explainError(error, path);
  }
  throw new Error(`it is complete only with ${wal}, which cannot be checkpointed: ${why}`);
}
