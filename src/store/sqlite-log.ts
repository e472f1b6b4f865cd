import { closeSync, openSync, readSync, realpathSync, statSync } from "node:fs";
import { DatabaseSync, type StatementSync } from "node:sqlite";
import { resultCode, resultCodeOf } from "./sqlite-errors.ts";

/** The largest file that a start reads through, in bytes; a larger one would take too long. */
const maxCheckedBytes = 4 * 1024 ** 3;

/** What the smallest disks write at once, in bytes. */
const sectorSize = 512;

/** The sizes of a log's header and of a frame's, which begins with the number of its page. */
const logHeaderSize = 32;
const frameHeaderSize = 24;

/**
 * Refuses a log that is not that of the file, such as one that was left behind when a backup was put
 * in the place of the file. SQLite itself takes pages from both, and its first checkpoint spoils the
 * file. Here nothing changes but the index of the log.
 *
 * Since records are only added, file and log belong together only if what they hold together is whole
 * and has each record of the file. `integrity_check` proves that every page up to the end is used, and
 * its records are in order. So a record of the file can only be missing from a page that the log
 * replaces, or from one beyond that end.
 *
 * To be called before this process opens the file: closing it drops the locks of the process on it.
 *
 * @param timeoutMs how long to wait for a lock of another process
 * @throws {Error} in plain words, with the way to restore
 */
export function refuseForeignLog(
  path: string,
  timeoutMs: number,
  onWarning: (message: string) => void,
): void {
  const file = realpathSync(path);
  const log = `${file}-wal`;
  const logSize = statSync(log, { throwIfNoEntry: false })?.size ?? 0;
  if (logSize <= logHeaderSize) return;
  const finding = examine(file, log, timeoutMs, onWarning);
  if (finding === undefined) return;
  throw new Error(
    `the file and its log ${log} do not belong together, or are damaged (${finding}). ` +
      "Nothing has been changed. If you have put a backup in the place of the file, move the log away; " +
      "else move the file and the log away, and put a backup in their place",
  );
}

/** What is wrong with a file and its log together, or undefined if nothing is. */
function examine(
  file: string,
  log: string,
  timeoutMs: number,
  onWarning: (message: string) => void,
): string | undefined {
  // Before anything is read, since other processes may add to it.
  const { size } = statSync(file);
  const db = new DatabaseSync(file, { readOnly: true, timeout: timeoutMs });
  try {
    const pragma = (name: string, column = name) => db.prepare(`PRAGMA ${name}`).get()?.[column];
    const frames = Number(pragma("wal_checkpoint(NOOP)", "log"));
    const pageSize = Number(pragma("page_size"));
    const replaced = pagesIn(log, frames, pageSize);
    if (replaced.size === 0) return undefined;
    const pageCount = Number(pragma("page_count"));
    if (size > pageCount * pageSize) return "the log cuts the end of the file off";
    for (const number of replaced) {
      if (number > pageCount) return "the log goes on beyond the end of the file";
    }
    if (size > maxCheckedBytes) {
      onWarning(`${file} was not read through for damage: it is larger than 4 GiB`);
    } else {
      const result = pragma("integrity_check(1)", "integrity_check");
      if (result !== "ok") return String(result);
    }
    let find: StatementSync | undefined;
    for (const id of idsOn(file, replaced, pageSize)) {
      find ??= db.prepare("SELECT 1 FROM investors WHERE id = unhex(?)");
      if (find.get(id) === undefined) return "the log takes records of the file away";
    }
    return undefined;
  } catch (error) {
    if (resultCodeOf(error) === resultCode.corrupt) return (error as Error).message;
    throw error;
  } finally {
    db.close();
  }
}

/** The numbers of the pages in the first frames of a log. */
function pagesIn(log: string, frames: number, pageSize: number): Set<number> {
  const numbers = new Set<number>();
  const descriptor = openSync(log, "r");
  try {
    const number = Buffer.alloc(4);
    for (let i = 0; i < frames; i += 1) {
      readSync(descriptor, number, 0, 4, logHeaderSize + i * (frameHeaderSize + pageSize));
      numbers.add(number.readUInt32BE());
    }
  } finally {
    closeSync(descriptor);
  }
  return numbers;
}

/** The ids, in hexadecimal digits, on pages of a file, as far as they are in it. */
function* idsOn(file: string, numbers: Set<number>, pageSize: number): Generator<string> {
  const descriptor = openSync(file, "r");
  try {
    const page = Buffer.alloc(pageSize);
    for (const number of numbers) {
      const size = readSync(descriptor, page, 0, pageSize, (number - 1) * pageSize);
      if (size === pageSize) yield* idsOf(page);
    }
  } finally {
    closeSync(descriptor);
  }
}

/**
 * The ids on a page of the table (https://www.sqlite.org/fileformat2.html#b_tree_pages). A power cut
 * in a checkpoint can leave a page of which only some sectors were written; so an id counts only if
 * it is in the same sector as the head of its record.
 */
function* idsOf(page: Buffer): Generator<string> {
  const isLeaf = page[0] === 0x0a;
  if (!isLeaf && page[0] !== 0x02) return;
  const pointers = isLeaf ? 8 : 12;
  const count = Math.min(page.readUInt16BE(3), (page.length - pointers) / 2);
  for (let i = 0; i < count; i += 1) {
    const cell = page.readUInt16BE(pointers + 2 * i);
    // An interior cell begins with the number of a page; then each has its size, 7 bits a byte.
    let head = isLeaf ? cell : cell + 4;
    while ((page[head] ?? 0) >= 0x80) head += 1;
    head += 1;
    const id = head + (page[head] ?? 0);
    const isBlobOf16 = page[head + 1] === 44;
    const isInSector = Math.floor(cell / sectorSize) === Math.floor((id + 15) / sectorSize);
    if (isBlobOf16 && isInSector) yield page.toString("hex", id, id + 16);
  }
}
