import { closeSync, openSync, readSync, realpathSync, statSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { resultCode, resultCodeOf } from "./sqlite-errors.ts";

/** The largest file that a start reads through, in bytes; a larger one would take too long. */
const maxCheckedBytes = 4 * 1024 ** 3;

/** What the smallest disks write at once, in bytes. */
const sectorSize = 512;

/** The sizes of what stands before the frames of a log, and before the page of each frame. */
const logHeaderSize = 32;
const frameHeaderSize = 24;

/**
 * Refuses a log that is not that of the file, such as one that was left behind when a backup was put
 * in the place of the file. SQLite itself takes pages from both, and its first checkpoint spoils the
 * file. Here nothing changes but the index of the log.
 *
 * Since records are only added, file and log belong together only if what they hold together is whole
 * and has each record of the file. `integrity_check` proves that every page up to the end that the
 * log names is used, and its records are in order. So a record of the file can only be missing from
 * a page that the log replaces, or from one beyond that end.
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
    `the file and the log ${log} do not belong together, or are damaged (${finding}). ` +
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
  // In this order, since other processes may add to both.
  const ids = new Set(idsUnder(file, log));
  const { size } = statSync(file);
  const db = new DatabaseSync(file, { readOnly: true, timeout: timeoutMs });
  try {
    const pragma = (name: string) => Object.values(db.prepare(`PRAGMA ${name}`).get() ?? {})[0];
    if (Number(pragma("page_count")) * Number(pragma("page_size")) < size) {
      return "the log cuts the end of the file off";
    }
    if (size > maxCheckedBytes) {
      onWarning(`${file} was not read through for damage: it is larger than 4 GiB`);
    } else {
      const result = pragma("integrity_check(1)");
      if (result !== "ok") return String(result);
    }
    if (ids.size === 0) return undefined;
    const find = db.prepare("SELECT 1 FROM investors WHERE id = unhex(?)");
    for (const id of ids) {
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

/** The ids, in hexadecimal digits, on the pages of a file that its log replaces. */
function* idsUnder(file: string, log: string): Generator<string> {
  const [data, frames] = [openSync(file, "r"), openSync(log, "r")];
  try {
    const header = Buffer.alloc(logHeaderSize);
    readSync(frames, header, 0, logHeaderSize, 0);
    const pageSize = header.readUInt32BE(8);
    // SQLite ignores a log with any other.
    if (pageSize < 512 || pageSize > 65_536) return;
    const page = Buffer.alloc(pageSize);
    // The first page has no records.
    const seen = new Set<number>([0, 1]);
    let position = logHeaderSize;
    while (readSync(frames, header, 0, 4, position) === 4) {
      const number = header.readUInt32BE(0);
      position += frameHeaderSize + pageSize;
      if (seen.has(number)) continue;
      seen.add(number);
      const size = readSync(data, page, 0, pageSize, (number - 1) * pageSize);
      if (size === pageSize) yield* idsOn(page);
    }
  } finally {
    closeSync(data);
    closeSync(frames);
  }
}

/**
 * The ids on a page of the table (https://www.sqlite.org/fileformat2.html#b_tree_pages). A power cut
 * in a checkpoint can leave a page of which only some sectors were written; so an id counts only if
 * it is in the same sector as the head of its record.
 */
function* idsOn(page: Buffer): Generator<string> {
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
