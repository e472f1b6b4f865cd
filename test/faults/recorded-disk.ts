/** A disk that fails as it is told: recorded-disk.c, and what a power cut may leave of it. */
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import type { Random } from "../support/random.ts";

/** The operations of the log. */
const op = { create: 1, write: 2, truncate: 3, sync: 4, lose: 5, unlink: 6, struck: 7 };
const headSize = 64;
const pageSize = 4_096;

/** One record of the log. */
export interface LogRecord {
  /** The size of the log with this record. */
  end: number;
  op: number;
  offset: number;
  name: string;
  data: Buffer;
}

/** The contents of a folder by name. */
export type Files = Map<string, Buffer>;

/** Compiles recorded-disk.c into a new folder. */
export function compileRecorder(): string {
  const library = join(mkdtempSync(join(tmpdir(), "recorded-disk-")), "recorded-disk.so");
  const source = resolve(import.meta.dirname, "recorded-disk.c");
  execFileSync("cc", ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-o", library, source]);
  return library;
}

/** The environment of a process whose files in a folder are on such a disk. */
export function onDisk(library: string, folder: string, rules: string): NodeJS.ProcessEnv {
  return {
    LD_PRELOAD: library,
    NODE_COMPILE_CACHE: join(dirname(library), "cache"),
    DISK_FOLDER: folder,
    DISK_RULES: rules,
  };
}

/** Makes the disk fail by other rules from now on. */
export function setRules(path: string, rules: string): void {
  writeFileSync(`${path}.new`, rules);
  renameSync(`${path}.new`, path);
}

/** Reads a log. A record that is cut short at its end is left out. */
export function readLog(path: string): LogRecord[] {
  const log = readFileSync(path);
  const records: LogRecord[] = [];
  for (let start = 0; start + headSize <= log.length; ) {
    const end = start + log.readUInt32LE(start);
    if (end > log.length) break;
    records.push({
      end,
      op: log.readUInt32LE(start + 4),
      offset: Number(log.readBigInt64LE(start + 8)),
      name: log.toString("latin1", start + 16, log.indexOf(0, start + 16)),
      data: log.subarray(start + headSize, end),
    });
    start = end;
  }
  return records;
}

/** Whether a fault has struck after a position of the log. */
export function hasStruck(path: string, position: number): boolean {
  return readLog(path).some((record) => record.op === op.struck && record.end > position);
}

/** What is in a file; pages are never changed, but replaced. */
interface Content {
  size: number;
  pages: Map<number, Buffer>;
}

/** One step from one content to another, and the position of the log at which it was made. */
type Change = { at: number } & ({ page: number; data: Buffer } | { size: number; isCut: boolean });

interface File {
  cached: Content;
  durable: Content;
  /** What a later sync makes durable. */
  pending: Change[];
}

/**
 * A disk behind a page cache, with the files that were there, durable, before its log began.
 *
 * A sync writes whole pages of 4 KiB, as Linux does; what is not synced may be on the disk or
 * not, each page and the file's size for itself, as of any time; a truncation is one step. Names come and go in order, since journaling file systems log
 * them so; they are durable after a sync of the folder, or of the file that has just been made:
 * POSIX asks for the former, but ext4, XFS and btrfs promise the latter too.
 */
export function createDisk(initial: Files) {
  const seen = new Map<string, File>();
  const durable = new Map<string, File>();
  let names: { at: number; name: string; file: File | undefined }[] = [];
  let now = 0;

  function make(file: File, change: Change): void {
    enact(file.cached, change);
    file.pending.push(change);
  }

  function write(file: File, offset: number, data: Buffer): void {
    for (let done = 0; done < data.length; ) {
      const page = Math.floor((offset + done) / pageSize);
      const changed = Buffer.from(pageOf(file.cached, page));
      done += data.copy(changed, (offset + done) % pageSize, done);
      make(file, { at: now, page, data: changed });
    }
    const size = offset + data.length;
    if (size > file.cached.size) make(file, { at: now, size, isCut: false });
  }

  function name(text: string, file: File | undefined): void {
    names.push({ at: now, name: text, file });
    if (file === undefined) seen.delete(text);
    else seen.set(text, file);
  }

  function syncNames(until: number): void {
    for (const each of names) if (each.at <= until) enter(durable, each);
    names = names.filter(({ at }) => at > until);
  }

  function sync(file: File, began: number): void {
    for (const change of file.pending) if (change.at <= began) enact(file.durable, change);
    file.pending = file.pending.filter(({ at }) => at > began);
    syncNames(names.findLast((each) => each.file === file)?.at ?? 0);
  }

  /** The data of a file gets lost; its size is metadata, which have a journal. */
  function losePages(file: File): void {
    file.pending = file.pending.filter((change) => "size" in change);
  }

  for (const [text, data] of initial) {
    const file: File = { cached: empty(), durable: empty(), pending: [] };
    write(file, 0, data);
    sync(file, 0);
    enter(seen, { name: text, file });
    enter(durable, { name: text, file });
  }

  return {
    /** Applies the next record of the log. */
    apply(record: LogRecord): void {
      now = record.end;
      if (record.op === op.create) {
        name(record.name, { cached: empty(), durable: empty(), pending: [] });
        return;
      }
      if (record.op === op.unlink) {
        name(record.name, undefined);
        return;
      }
      if (record.op === op.sync && record.name === ".") syncNames(record.offset);
      const file = seen.get(record.name);
      if (file === undefined) return;
      if (record.op === op.write) write(file, record.offset, record.data);
      if (record.op === op.truncate) make(file, { at: now, size: record.offset, isCut: true });
      if (record.op === op.sync) sync(file, record.offset);
      if (record.op === op.lose) losePages(file);
    },

    /** What processes see in the folder. */
    seen: (): Files => new Map(Array.from(seen, ([text, { cached }]) => [text, toBuffer(cached)])),

    /** What a power cut now may leave in the folder. */
    afterPowerCut(random: Random): Files {
      const way = random.pick(["nothing", "everything", "in order", "pages"]);
      const inOrder = now - random.int(0, random.pick([10_000, 100_000, 1_000_000]));

      /** The time as of which a part of the disk is. */
      function timeAmong(changes: { at: number }[]): number {
        if (way === "nothing") return 0;
        if (way === "everything") return now;
        return way === "in order" ? inOrder : random.pick([0, ...changes.map(({ at }) => at)]);
      }

      function remainsOf({ durable: before, pending }: File): Buffer {
        const content = { size: before.size, pages: new Map(before.pages) };
        const sizeTime = timeAmong(pending);
        const times = new Map<number, number>();
        for (const change of pending) {
          if ("size" in change) {
            if (change.at <= sizeTime) enact(content, change);
            // What was written after a truncation comes after it.
            else if (change.isCut) break;
            continue;
          }
          const time = times.get(change.page) ?? timeAmong(pending);
          times.set(change.page, time);
          if (change.at <= time) enact(content, change);
        }
        return toBuffer(content);
      }

      const entries = new Map(durable);
      const namesTime = timeAmong(names);
      for (const each of names) if (each.at <= namesTime) enter(entries, each);
      return new Map(Array.from(entries, ([text, file]) => [text, remainsOf(file)]));
    },
  };
}

function empty(): Content {
  return { size: 0, pages: new Map() };
}

function pageOf({ pages }: Content, index: number): Buffer {
  return pages.get(index) ?? Buffer.alloc(pageSize);
}

function enact(content: Content, change: Change): void {
  if ("page" in change) {
    content.pages.set(change.page, change.data);
    return;
  }
  content.size = change.size;
  if (!change.isCut) return;
  for (const [index, page] of content.pages) {
    const kept = change.size - index * pageSize;
    if (kept <= 0) content.pages.delete(index);
    else if (kept < pageSize) content.pages.set(index, Buffer.from(page).fill(0, kept));
  }
}

function enter(
  entries: Map<string, File>,
  { name, file }: { name: string; file: File | undefined },
): void {
  if (file === undefined) entries.delete(name);
  else entries.set(name, file);
}

function toBuffer({ size, pages }: Content): Buffer {
  const data = Buffer.alloc(size);
  for (const [index, page] of pages) {
    if (index * pageSize < size) page.copy(data, index * pageSize);
  }
  return data;
}
