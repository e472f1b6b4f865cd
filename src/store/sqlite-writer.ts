/**
 * The thread that writes. It gets a batch of rows per message, commits them together
 * and answers with the outcome of each. A commit that fails in a way that leaves the
 * outcome open ends the thread.
 */
import type { SQLInputValue } from "node:sqlite";
import { parentPort, workerData } from "node:worker_threads";
import { openSqliteFile, resultCode, resultCodeOf } from "./sqlite-file.ts";

/** The columns of a record in the order of the table. */
export type Row = SQLInputValue[];

/** What became of one row: written, not written because its id is taken, or refused. */
export type RowOutcome = "written" | "duplicate" | { refused: string };

/** What became of a batch; of a failed one, nothing was written. */
export type Reply = { outcomes: RowOutcome[] } | { failed: string; errcode: number | undefined };

/** What another process may hold up a commit, in milliseconds. */
const busyTimeoutMs = 5_000;

const port = parentPort;
if (port === null) throw new Error("sqlite-writer runs as a thread only");
const db = openSqliteFile(workerData, busyTimeoutMs);
const insert = db.prepare(
  `INSERT INTO investors VALUES (${Array(12).fill("?").join(", ")}) ON CONFLICT (id) DO NOTHING`,
);

port.on("message", (message: Row[] | "close") => {
  if (message === "close") {
    db.close();
    port.close();
  } else {
    port.postMessage(write(message) satisfies Reply);
  }
});

function write(rows: Row[]): Reply {
  let committing = false;
  try {
    db.exec("BEGIN IMMEDIATE");
    const outcomes = rows.map(writeRow);
    committing = true;
    db.exec("COMMIT");
    return { outcomes };
  } catch (error) {
    // The commit may have reached the disk, and SQLite cannot tell.
    if (committing && resultCodeOf(error) === resultCode.ioError) throw error;
    if (db.isTransaction) db.exec("ROLLBACK");
    return { failed: (error as Error).message, errcode: resultCodeOf(error) };
  }
}

function writeRow(row: Row): RowOutcome {
  try {
    return insert.run(...row).changes === 1 ? "written" : "duplicate";
  } catch (error) {
    const code = resultCodeOf(error);
    const isOfThisRow =
      code === resultCode.tooBig || code === resultCode.constraint || code === resultCode.mismatch;
    if (isOfThisRow && db.isTransaction) return { refused: (error as Error).message };
    throw error;
  }
}
