import {
  closeSync,
  existsSync,
  fsyncSync,
  openSync,
  readSync,
  realpathSync,
  statSync,
  writeSync,
} from "node:fs";
import { basename, dirname, join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { resultCode, resultCodeOf } from "./sqlite-errors.ts";

/** The largest file that a start reads through, in bytes; a larger one would take too long. */
const maxCheckedBytes = 4 * 1024 ** 3;

/** What the smallest disks write at once, in bytes. */
const sectorSize = 512;

/** The sizes of a log's header and of a frame's, which begins with its page and the count of pages. */
const logHeaderSize = 32;
const frameHeaderSize = 24;

/**
 * Refuses a log whose file is not with it: SQLite ignores one that is beside a link, and deletes one,
 * with the records in it, if its file is empty. Refuses a rollback journal too, by which SQLite would
 * undo what another program has begun.
 */
export function refuseLeftovers(path: string): void {
  const beside = join(realpathSync(dirname(path)), basename(path));
  const file = existsSync(path) ? realpathSync(path) : beside;
  for (const name of [beside, file]) {
    refuseJournal(`${name}-journal`);
    const log = `${name}-wal`;
    // The log first, since another process may be making both: in the file it writes first.
    // SQLite takes a file of one byte for an empty one.
    if (sizeOf(log) === 0 || (name === file && sizeOf(file) > 1)) continue;
    throw new Error(`its log ${log} is there without it: put the file back beside its log`);
  }
}

function refuseJournal(journal: string): void {
  let descriptor: number;
  try {
    descriptor = openSync(journal, "r");
  } catch {
    // It is not there, or SQLite will not be able to open it either.
    return;
  }
  const head = readAt(descriptor, 20, 0);
  closeSync(descriptor);
  // A file that is just being made has a journal for a moment, whose count of pages is 0.
  if (head.length === 0 || (head.length === 20 && head.readUInt32BE(16) === 0)) return;
  throw new Error(
    `${journal} is there: another program was ended while it changed the file. ` +
      "Nothing has been changed. Open the file once with that program, which then deletes the journal",
  );
}

function sizeOf(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.size ?? 0;
}

/**
 * Refuses a log that is not that of the file, such as one that was left behind when a backup was put
 * in the place of the file. SQLite itself takes pages from both, and its first checkpoint spoils the
 * file. Here nothing changes but the index of the log.
 *
 * To be called before this process opens the file: closing it drops the locks of the process on it.
 *
 * @throws {Error} for operators to read, with the way to restore
 */
export function refuseForeignLog(path: string, onWarning: (message: string) => void): void {
  const file = realpathSync(path);
  const log = `${file}-wal`;
  if (sizeOf(log) <= logHeaderSize) return;
  const finding = examine(file, log, onWarning);
  if (finding === undefined) return;
  throw new Error(
    `the file and its log ${log} do not belong together, or are damaged (${finding}). ` +
      "Nothing has been changed. If you have put a backup in the place of the file, move the log away; " +
      "else move the file and the log away, and put a backup in their place",
  );
}

/**
 * What is wrong with a file and its log together, or undefined if nothing is.
 *
 * They belong together only if what they hold together is whole and has each record of the file but
 * those that were removed. `integrity_check` proves that every page up to the end is used, and its
 * records are in order. So a record of the file can only be missing from a page that the log
 * replaces, or from one beyond the end that the log gives the file.
 */
function examine(
  file: string,
  log: string,
  onWarning: (message: string) => void,
): string | undefined {
  // Before anything is read, since other processes may add to it.
  const size = sizeOf(file);
  const db = new DatabaseSync(file, { readOnly: true });
  const [inFile, inLog] = [openSync(file, "r"), openSync(log, "r")];
  try {
    const pragma = (name: string, column = name) => db.prepare(`PRAGMA ${name}`).get()?.[column];
    const countFrames = () => Number(pragma("wal_checkpoint(NOOP)", "log"));
    const frames = countFrames();
    const pageSize = Number(pragma("page_size"));
    // Unless another process has just added to it.
    if (losesCommits(inLog, frames, pageSize) && frames === countFrames()) {
      onWarning(
        `${log} is damaged: SQLite can read only its first ${frames} frames, and ignores the rest`,
      );
    }
    if (frames === 0) return undefined;
    const { copies, pageCount } = readFrames(inLog, frames, pageSize);
    if (pageCount !== pragma("page_count")) {
      if (frames === countFrames()) return "they differ in the number of pages";
      // Another process has added to the log meanwhile.
      return examine(file, log, onWarning);
    }
    for (let number = pageCount + 1; number <= size / pageSize; number += 1) copies.set(number, []);
    if (size > maxCheckedBytes) {
      onWarning(`${file} was not read through for damage: it is larger than 4 GiB`);
    } else {
      const result = pragma("integrity_check(1)", "integrity_check");
      if (result !== "ok") return String(result);
    }
    const tables = db
      .prepare("SELECT name FROM sqlite_schema WHERE name IN ('investors', 'removed')")
      .all();
    const finds = tables.map(({ name }) => db.prepare(`SELECT 1 FROM ${name} WHERE id = ?`));
    for (const [number, positions] of copies) {
      const page = readAt(inFile, pageSize, (number - 1) * pageSize);
      for (const { id, sectors } of recordsOn(page)) {
        if (finds.some((find) => find.get(id))) continue;
        const isTorn = positions.some((position) => {
          const copy = readAt(inLog, pageSize, position);
          const [isFirst, isLast] = sectors.map((at) => isSameSector(copy, page, at));
          return isFirst !== isLast;
        });
        if (!isTorn) return "the log takes records of the file away";
      }
    }
    return undefined;
  } catch (error) {
    if (resultCodeOf(error) === resultCode.corrupt) return (error as Error).message;
    throw error;
  } finally {
    for (const descriptor of [inFile, inLog]) closeSync(descriptor);
    db.close();
  }
}

/** Where a log has its copies of each page, and how many pages its last commit leaves. */
function readFrames(log: number, frames: number, pageSize: number) {
  const copies = new Map<number, number[]>();
  let pageCount = 0;
  for (let i = 0; i < frames; i += 1) {
    const position = logHeaderSize + i * (frameHeaderSize + pageSize);
    const head = readAt(log, frameHeaderSize, position);
    // Another process has just emptied the log.
    if (head.length < frameHeaderSize) break;
    const number = head.readUInt32BE();
    if (!copies.has(number)) copies.set(number, []);
    copies.get(number)?.push(position + frameHeaderSize);
    pageCount = head.readUInt32BE(4);
  }
  return { copies, pageCount };
}

/**
 * Whether a log has no commit that can be read, or one behind those. A process that is killed leaves
 * no such log, as the end of a commit is written last; a power cut can.
 */
function losesCommits(log: number, frames: number, pageSize: number): boolean {
  if (frames === 0) return true;
  const salt = readAt(log, 8, 16);
  for (let i = frames; ; i += 1) {
    const position = logHeaderSize + i * (frameHeaderSize + pageSize);
    const head = readAt(log, frameHeaderSize, position);
    if (head.length < frameHeaderSize) return false;
    // Frames of an earlier log have another salt.
    if (head.readUInt32BE(4) > 0 && head.subarray(8, 16).equals(salt)) return true;
  }
}

/** The bytes of a file at a position; fewer at its end. */
function readAt(descriptor: number, length: number, position: number): Buffer {
  const bytes = Buffer.alloc(length);
  return bytes.subarray(0, readSync(descriptor, bytes, 0, length, position));
}

/**
 * The ids on a page of the table (https://www.sqlite.org/fileformat2.html#b_tree_pages), each with
 * the first and the last of the sectors that it is read from. A power cut in a checkpoint can leave
 * one of them as it is in the log, and the other as it was before: then there is no such record.
 */
function* recordsOn(page: Buffer): Generator<{ id: Buffer; sectors: number[] }> {
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
    const sectors = [cell, id + 15].map((at) => Math.floor(at / sectorSize));
    if (isBlobOf16) yield { id: page.subarray(id, id + 16), sectors };
  }
}

function isSameSector(copy: Buffer, page: Buffer, sector: number): boolean {
  const [start, end] = [sector * sectorSize, (sector + 1) * sectorSize];
  return copy.subarray(start, end).equals(page.subarray(start, end));
}

/**
 * Writes the bytes of a log where they are, and syncs them, before its checkpoint. It may have been
 * written by a process whose sync failed or never returned. What the disk lost of it is in the page
 * cache still, which takes it for written: no later sync would bring it to the disk, and a power cut
 * in the checkpoint would leave a file half changed, and no log to repair it from.
 *
 * SQLite has no locks on the log that closing it could drop; the write lock keeps other processes
 * from changing it meanwhile.
 */
export function rewriteLog(db: DatabaseSync, path: string): void {
  db.exec("BEGIN IMMEDIATE");
  const log = openSync(`${realpathSync(path)}-wal`, "r+");
  try {
    const chunk = Buffer.alloc(1024 * 1024);
    for (let position = 0; ; ) {
      const size = readSync(log, chunk, 0, chunk.length, position);
      if (size === 0) break;
      position += writeSync(log, chunk, 0, size, position);
    }
    fsyncSync(log);
  } finally {
    closeSync(log);
    db.exec("ROLLBACK");
  }
}
