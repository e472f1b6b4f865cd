/**
 * The thread that writes. Its first message says that it is ready ({@link Started}). It gets a batch
 * of rows per message, commits them together and replies with the outcome of each. A commit that
 * fails in a way that leaves the outcome open ends the thread.
 */
import type { SQLInputValue } from "node:sqlite";
import { parentPort, workerData } from "node:worker_threads";
import { extendedCodeOf, resultCode, resultCodeOf } from "./sqlite-errors.ts";
import { identify, openSqliteFile } from "./sqlite-file.ts";

/**
 * The columns of a record in the order of the table, its id as text: with a small buffer, 64 KiB of
 * what it is a part of would go from thread to thread.
 */
export type Row = SQLInputValue[];

/** The first message: what the file {@link identify is}, and what operators should know of it. */
export interface Started {
  identity: string;
  warnings: string[];
}

/** Why nothing was written. */
export interface Failure {
  failed: string;
  errcode: number | undefined;
}

/** What became of one row: written, not written because its id is taken, or not for another cause. */
export type RowOutcome = "written" | "duplicate" | Failure;

/** What became of a batch. */
export type Reply = { outcomes: RowOutcome[] } | Failure;

const port = parentPort;
if (port === null) throw new Error("sqlite-writer runs as a thread only");
const path = workerData as string;
const warnings: string[] = [];
const db = await openSqliteFile(path, (message) => warnings.push(message));
const insert = db.prepare(
  `INSERT INTO investors VALUES (unhex(?, '-')${", ?".repeat(11)}) ON CONFLICT (id) DO NOTHING`,
);

port.on("message", (message: Row[] | "close") => {
  if (message === "close") {
    db.close();
    port.close();
  } else {
    port.postMessage(write(message) satisfies Reply);
  }
});

port.postMessage({ identity: identify(path), warnings } satisfies Started);

/**
 * Commits rows together, or, if one of them meets a damaged page, each by itself: so damage fails
 * only the rows that meet it.
 */
function write(rows: Row[]): Reply {
  const reply = commit(rows);
  const isDamaged = "failed" in reply && reply.errcode === resultCode.corrupt;
  if (!isDamaged || rows.length === 1) return reply;
  return {
    outcomes: rows.flatMap((row) => {
      const alone = commit([row]);
      return "outcomes" in alone ? alone.outcomes : [alone];
    }),
  };
}

function commit(rows: Row[]): Reply {
  let committing = false;
  try {
    db.exec("BEGIN IMMEDIATE");
    const outcomes = rows.map(writeRow);
    committing = true;
    db.exec("COMMIT");
    return { outcomes };
  } catch (error) {
    if (leavesOpen(error, committing)) throw error;
    if (db.isTransaction) db.exec("ROLLBACK");
    return toFailure(error);
  }
}

/**
 * Whether a failed batch may be on the disk, or its successors may not get there.
 *
 * SQLite fails a COMMIT with FULL or IOERR_WRITE only where it writes to the log (walFrames in
 * wal.c). The last bytes so written are those that make the commit frame valid: a write that failed
 * has not written them, and the next batch overwrites the rest. All other steps come after the
 * commit frame: the sync, and the entry in the index of the log, which may have to grow. An
 * automatic checkpoint comes later still and never fails the COMMIT.
 *
 * Before COMMIT nothing can be valid. But after a sync that failed, also that of the log's
 * header, Linux takes the lost pages for clean, and no later sync would write them.
 */
function leavesOpen(error: unknown, committing: boolean): boolean {
  const code = extendedCodeOf(error);
  return committing
    ? code !== resultCode.full && code !== resultCode.writeError
    : code === resultCode.syncError || code === resultCode.folderSyncError;
}

function writeRow(row: Row): RowOutcome {
  try {
    return insert.run(...row).changes === 1 ? "written" : "duplicate";
  } catch (error) {
    const isOfThisRow = resultCodeOf(error) === resultCode.constraint && db.isTransaction;
    if (isOfThisRow) return toFailure(error);
    throw error;
  }
}

function toFailure(error: unknown): Failure {
  return { failed: (error as Error).message, errcode: resultCodeOf(error) };
}
