/**
 * The count of commits, by which a file and its WAL are known to belong together. It is in the header
 * of the file (PRAGMA user_version), and so on page 1, which every commit to the WAL then has.
 */
import { randomInt } from "node:crypto";
import { closeSync, openSync, readSync, realpathSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { pathToFileURL } from "node:url";
import { sizeOf } from "./paths.ts";

/** The counts; smaller ones are those of files that have none: 0 of an empty one, 1 of version 0.3 or older. */
const minCount = 2;
const maxCount = 2 ** 31 - 1;

/** The sizes of a WAL's header and of a frame's (https://www.sqlite.org/fileformat2.html#walformat). */
export const walHeaderSize = 32;
export const frameHeaderSize = 24;

/** The offsets of the schema cookie and the count on page 1. */
const cookieAt = 40;
const countAt = 60;

/** How many frames of a WAL are read at once. */
const framesAtOnce = 256;

/** Whether the file's commits are counted. */
export function isCounted(db: DatabaseSync): boolean {
  return pragma(db, "user_version") >= minCount;
}

/** Begins the count, within a transaction, at a number that another file is unlikely to have. */
export function beginCount(db: DatabaseSync): void {
  db.exec(`PRAGMA user_version = ${randomInt(minCount, maxCount)}`);
}

/**
 * Counts the commit of a transaction. Each one that writes has to call this.
 *
 * @param read reads the count; a caller that commits often prepares it once
 * @returns the count before it and with it
 */
export function countCommit(db: DatabaseSync, read = db.prepare("PRAGMA user_version")) {
  const before = Number(read.get()?.user_version);
  const count = following(before);
  db.exec(`PRAGMA user_version = ${count}`);
  return { before, count };
}

function following(count: number): number {
  return count < maxCount ? count + 1 : minCount;
}

/**
 * Refuses a WAL that is not that of the file, such as one that was left behind when a backup was put
 * in the place of the file: SQLite would take pages from both, and its first checkpoint would spoil
 * the file. They belong together if the file has one of the counts in the WAL, at which a checkpoint
 * can have left it, or the one before the first, and a schema that is not newer than it was then.
 * Nothing changes here but the index of the WAL.
 *
 * To be called before this process changes the file or its WAL.
 *
 * @param timeoutMs for a process that locks all others out while it opens or closes the file
 * @throws {Error} for operators to read, with the way to restore
 */
export function refuseForeignWal(path: string, timeoutMs: number): void {
  const file = realpathSync(path);
  const wal = `${file}-wal`;
  if (sizeOf(wal) <= walHeaderSize) return;
  // While it is open, no other process can bring later commits into the file, or delete the WAL.
  using snapshot = new DatabaseSync(file, { readOnly: true, timeout: timeoutMs });
  snapshot.exec("BEGIN");
  // This read takes the snapshot; that of the page size does not.
  pragma(snapshot, "user_version");
  const pageSize = pragma(snapshot, "page_size");
  // SQLite has no locks on the WAL that closing it could drop.
  const descriptor = openSync(wal, "r");
  try {
    for (;;) {
      const header = readHeader(descriptor);
      const versions = readVersions(descriptor, countFrames(file, timeoutMs), pageSize);
      if (belongTogether(file, versions)) return;
      // If another process has begun the WAL anew meanwhile, versions of two WALs were compared.
      if (header.equals(readHeader(descriptor))) break;
    }
  } finally {
    closeSync(descriptor);
  }
  throw new Error(
    `the file and its WAL ${wal} do not belong together. ` +
      "Nothing has been changed. If you have put a backup in the place of the file, move the WAL away; " +
      "else move the file and the WAL away, and put a backup in their place",
  );
}

function belongTogether(file: string, versions: Version[]): boolean {
  const [first] = versions;
  // Other programs need not change page 1, and older versions do not count.
  if (first === undefined) return true;
  const inFile = readVersionOfFile(file);
  if ([inFile, ...versions].every(({ count }) => count < minCount)) return true;
  const matching = versions.filter(({ count }) => count === inFile.count);
  if (following(inFile.count) === first.count) matching.push(first);
  // VACUUM INTO copies the count, but its schema cookie is higher.
  return matching.some(({ cookie }) => inFile.cookie <= cookie);
}

/** The header of a WAL, which changes each time that the WAL is begun anew. */
function readHeader(wal: number): Buffer {
  const header = Buffer.alloc(walHeaderSize);
  readSync(wal, header, 0, walHeaderSize, 0);
  return header;
}

/** What a version of page 1 says. */
interface Version {
  count: number;
  cookie: number;
}

/** The frames of a WAL up to its last whole commit. */
function countFrames(file: string, timeoutMs: number): number {
  // SQLite does not count them for a connection with a transaction.
  using db = new DatabaseSync(file, { readOnly: true, timeout: timeoutMs });
  return Number(db.prepare("PRAGMA wal_checkpoint(NOOP)").get()?.log);
}

/** What each version of page 1 in a WAL says, in its order. */
function readVersions(wal: number, frames: number, pageSize: number): Version[] {
  const frameSize = frameHeaderSize + pageSize;
  const buffer = Buffer.alloc(framesAtOnce * frameSize);
  const versions: Version[] = [];
  for (let done = 0; done < frames; done += framesAtOnce) {
    const length = Math.min(framesAtOnce, frames - done) * frameSize;
    const size = readSync(wal, buffer, 0, length, walHeaderSize + done * frameSize);
    for (let at = 0; at + frameSize <= size; at += frameSize) {
      if (buffer.readUInt32BE(at) !== 1) continue;
      const page = at + frameHeaderSize;
      versions.push({
        count: buffer.readUInt32BE(page + countAt),
        cookie: buffer.readUInt32BE(page + cookieAt),
      });
    }
  }
  return versions;
}

/** What the file says without its WAL. SQLite reads it: closing it otherwise would drop locks. */
function readVersionOfFile(file: string): Version {
  const url = pathToFileURL(file);
  url.searchParams.set("immutable", "1");
  using db = new DatabaseSync(url, { readOnly: true, defensive: false });
  // A kill in the middle of a checkpoint leaves a file whose header says more pages than there are,
  // which SQLite otherwise takes for damaged.
  db.exec("PRAGMA writable_schema = ON");
  return { count: pragma(db, "user_version"), cookie: pragma(db, "schema_version") };
}

/** The number that a pragma returns. */
export function pragma(db: DatabaseSync, name: string): number {
  return Number(db.prepare(`PRAGMA ${name}`).get()?.[name]);
}
