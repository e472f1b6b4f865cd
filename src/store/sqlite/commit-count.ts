/**
 * A count of commits, which shows whether a file and its WAL belong together. It is kept in the file's
 * header (PRAGMA user_version), on page 1, so every commit writes a version of page 1 to the WAL.
 */
import { randomInt } from "node:crypto";
import { closeSync, openSync, readSync, realpathSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { pathToFileURL } from "node:url";
import { sizeOf } from "./paths.ts";

/** Valid counts. Smaller numbers are those of empty files and of files that SQLite's .dump made. */
const minCount = 2;
const maxCount = 2 ** 31 - 1;

/** The sizes of a WAL's header and of a frame's (https://www.sqlite.org/fileformat2.html#walformat). */
const walHeaderSize = 32;
const frameHeaderSize = 24;

/** The offsets of the schema cookie and the count on page 1. */
const cookieAt = 40;
const countAt = 60;

const framesAtOnce = 256;

/** Whether the file's commits are counted. */
export function isCounted(db: DatabaseSync): boolean {
  return pragma(db, "user_version") >= minCount;
}

/** Starts the count, within a transaction, at a random number, which another file is unlikely to have. */
export function beginCount(db: DatabaseSync): void {
  db.exec(`PRAGMA user_version = ${randomInt(minCount, maxCount)}`);
}

/**
 * Counts the current transaction's commit. Every transaction that writes must call this; VACUUM cannot,
 * and raises the schema cookie instead.
 *
 * @param read a prepared statement that reads the count, for callers that commit often
 */
export function countCommit(db: DatabaseSync, read = db.prepare("PRAGMA user_version")): void {
  db.exec(`PRAGMA user_version = ${following(Number(read.get()?.user_version))}`);
}

function following(count: number): number {
  return count < maxCount ? count + 1 : minCount;
}

/**
 * Refuses a WAL of another file, such as one left behind when a backup replaced the file: SQLite
 * would mix their pages, and its first checkpoint would corrupt the file. They belong together if
 * the file has a count at which a checkpoint can have left it (one of those in the WAL, or the one
 * before the first), and a schema no newer than at that count. Changes nothing but the WAL's index.
 *
 * Call it before this process changes the file or its WAL.
 *
 * @param timeoutMs how long to wait for a process that holds an exclusive lock to open or close the
 * file
 * @throws {Error} for operators, with the steps to restore
 */
export function refuseForeignWal(path: string, timeoutMs: number): void {
  const file = realpathSync(path);
  const wal = `${file}-wal`;
  if (sizeOf(wal) <= walHeaderSize) return;
  // While the snapshot is open, no other process can checkpoint later commits, or delete the WAL.
  using snapshot = new DatabaseSync(file, { readOnly: true, timeout: timeoutMs });
  snapshot.exec("BEGIN");
  // This read takes the snapshot; reading page_size does not.
  pragma(snapshot, "user_version");
  const pageSize = pragma(snapshot, "page_size");
  // Closing the WAL drops no locks: SQLite has none on it.
  const descriptor = openSync(wal, "r");
  try {
    const versions = readVersions(descriptor, countFrames(file, timeoutMs), pageSize);
    if (belongTogether(file, versions)) return;
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
  // Other programs need not change page 1.
  if (first === undefined) return true;
  const inFile = readVersionOfFile(file);
  if ([inFile, ...versions].every(({ count }) => count < minCount)) return true;
  const matching = versions.filter(({ count }) => count === inFile.count);
  if (following(inFile.count) === first.count) matching.push(first);
  // VACUUM INTO copies the count, but raises the schema cookie.
  return matching.some(({ cookie }) => inFile.cookie <= cookie);
}

/** The fields of one version of page 1. */
interface Version {
  count: number;
  cookie: number;
}

/** The number of frames up to the WAL's last complete commit. */
function countFrames(file: string, timeoutMs: number): number {
  // A second connection, since SQLite does not report this to one within a transaction.
  using db = new DatabaseSync(file, { readOnly: true, timeout: timeoutMs });
  return Number(db.prepare("PRAGMA wal_checkpoint(NOOP)").get()?.log);
}

/** All versions of page 1 in a WAL, oldest first. */
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

/** Page 1 of the file, without its WAL. Read through SQLite: closing a descriptor of our own would drop locks. */
function readVersionOfFile(file: string): Version {
  const url = pathToFileURL(file);
  url.searchParams.set("immutable", "1");
  using db = new DatabaseSync(url, { readOnly: true, defensive: false });
  // Without this, SQLite reports damage if a kill during a checkpoint has left a file whose
  // header counts more pages than the file has.
  db.exec("PRAGMA writable_schema = ON");
  return { count: pragma(db, "user_version"), cookie: pragma(db, "schema_version") };
}

/** The number that a pragma returns. */
export function pragma(db: DatabaseSync, name: string): number {
  return Number(db.prepare(`PRAGMA ${name}`).get()?.[name]);
}
