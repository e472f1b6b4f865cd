/** What recorded-disk.c has logged, and what a power cut may leave of it. */
import { readFileSync } from "node:fs";
import type { Random } from "../support/random.ts";

/** The operations of the log. */
export const op = {
  open: 1,
  write: 2,
  truncate: 3,
  sync: 4,
  rename: 5,
  unlink: 6,
  read: 7,
  done: 8,
} as const;

/** The fault of a sync whose pages are lost. */
export const lost = 1_003;

/** One record of the log. */
export interface LogRecord {
  /** The size of the log with this record. */
  end: number;
  /** Names an operation in it and in its `done`. */
  key: string;
  op: number;
  /** 0, or what strikes the operation. */
  fault: number;
  inode: bigint;
  offset: number;
  data: Buffer;
}

/** The contents of a folder by name. */
export type Files = Map<string, Buffer>;

const pageSize = 4_096;
const sectorSize = 512;
const noPage = Buffer.alloc(pageSize);

/** Reads a log. A record that is cut short at its end is left out. */
export function readLog(path: string): LogRecord[] {
  const log = readFileSync(path);
  const records: LogRecord[] = [];
  for (let start = 0; start + 32 <= log.length; ) {
    const end = start + log.readUInt32LE(start);
    if (end > log.length) break;
    records.push({
      end,
      key: `${log.readUInt32LE(start + 4)} ${log.readUInt32LE(start + 8)}`,
      op: log.readUInt16LE(start + 12),
      fault: log.readUInt16LE(start + 14),
      inode: log.readBigUInt64LE(start + 16),
      offset: Number(log.readBigInt64LE(start + 24)),
      data: log.subarray(start + 32, end),
    });
    start = end;
  }
  return records;
}

/** What a page or a size has been since it was last made durable, which is the first. */
interface Versions<T = unknown> {
  list: Version<T>[];
}

interface Version<T> {
  since: number;
  value: T;
  /** Whether a truncation made it. */
  isCut?: boolean;
}

/** A page, and how processes see it. */
interface Page extends Versions<Buffer> {
  cached: Buffer;
}

interface File {
  pages: Map<number, Page>;
  size: Versions<number>;
  /** What may have changed since the last sync. */
  unsynced: Set<Versions>;
}

/** Names that come or go in one step. */
interface EntryChange {
  since: number;
  entries: [string, File | undefined][];
}

/** A disk behind a page cache, as far as its log has been applied. */
export interface Disk {
  /** Applies the next record. */
  apply(record: LogRecord): void;
  /** What processes see in the folder. */
  seen(): Files;
  /** Whether an operation other than a sync has begun and not returned. */
  isChanging(): boolean;
  /** What a power cut now may leave in the folder. */
  afterPowerCut(random: Random): Files;
}

/**
 * Makes the disk with the files that were there, durable, before the log began.
 *
 * A sync writes whole pages of 4 KiB, as Linux does; what is not synced may be on the disk or
 * not, each page and file size for itself, in any version and mixed by sectors, which are
 * atomic; a truncation is one step. Entries come and go in order, since journaling file systems log them so; they are
 * durable after a sync of the folder, or of the file that has just been made: POSIX asks for
 * the former, but ext4, XFS and btrfs promise the latter too.
 *
 * @param isSpared decides of each page of a sync that loses its pages whether it was written
 */
export function createDisk(initial: Files = new Map(), isSpared = () => false): Disk {
  const inodes = new Map<bigint, File>();
  const operations = new Map<
    string,
    { op: number; expected: number; fault: number; finish(): void }
  >();
  const seen = new Map<string, File>();
  const durable = new Map<string, File>();
  let changes: EntryChange[] = [];
  let folder: bigint | undefined;
  let now = 0;

  function makeFile(): File {
    return { pages: new Map(), size: { list: [{ since: 0, value: 0 }] }, unsynced: new Set() };
  }

  function push<T>(file: File, versions: Versions<T>, value: T, isCut = false): void {
    versions.list.push({ since: now, value, isCut });
    file.unsynced.add(versions);
  }

  function pageOf(file: File, index: number) {
    let page = file.pages.get(index);
    if (page === undefined) {
      page = { cached: noPage, list: [{ since: 0, value: noPage }] };
      file.pages.set(index, page);
    }
    return page;
  }

  function write(file: File, offset: number, data: Buffer): void {
    for (let at = offset; at < offset + data.length; ) {
      const page = pageOf(file, Math.floor(at / pageSize));
      page.cached = Buffer.from(page.cached);
      at += data.copy(page.cached, at % pageSize, at - offset);
      push(file, page, page.cached);
    }
    const size = offset + data.length;
    if (size > (file.size.list.at(-1) as Version<number>).value) push(file, file.size, size);
  }

  function truncate(file: File, size: number): void {
    for (const [index, page] of file.pages) {
      const kept = size - index * pageSize;
      if (kept >= pageSize) continue;
      page.cached = Buffer.from(page.cached).fill(0, Math.max(kept, 0));
      push(file, page, page.cached, true);
    }
    push(file, file.size, size, true);
  }

  function changeEntries(...entries: EntryChange["entries"]): void {
    changes.push({ since: now, entries });
    enter(seen, entries);
  }

  function syncEntries(until: number): void {
    const synced = changes.filter(({ since }) => since <= until);
    for (const { entries } of synced) enter(durable, entries);
    changes = changes.slice(synced.length);
  }

  /** What a sync that begins now has made durable when it returns. */
  function sync(file: File): () => void {
    const began = now;
    return () => {
      for (const versions of file.unsynced) {
        const synced = versions.list.findLastIndex(({ since }) => since <= began);
        versions.list.splice(0, synced);
        if (versions.list.length === 1) file.unsynced.delete(versions);
      }
      const made = changes.findLast(({ entries }) => entries.some(([, entry]) => entry === file));
      if (made !== undefined) syncEntries(made.since);
    };
  }

  /** The data of a file gets lost; its size is metadata, which have a journal. */
  function losePages(file: File): void {
    for (const page of file.unsynced) {
      if (page === file.size) continue;
      const kept = page.list.filter(({ isCut }, i) => i === 0 || isCut);
      page.list = isSpared() ? page.list.slice(-1) : kept;
      if (page.list.length === 1) file.unsynced.delete(page);
    }
  }

  function begin({ op: kind, fault, inode, offset, data }: LogRecord): () => void {
    const name = data.toString("latin1");
    const file = inodes.get(inode);
    if (kind === op.open && name === ".") folder = inode;
    else if (kind === op.open && offset === 1) {
      const made = makeFile();
      inodes.set(inode, made);
      changeEntries([name, made]);
    } else if (kind === op.open) inodes.set(inode, seen.get(name) ?? makeFile());
    else if (kind === op.unlink) changeEntries([name, undefined]);
    else if (kind === op.rename) {
      const [from = "", to = ""] = name.split("\0");
      changeEntries([from, undefined], [to, seen.get(from)]);
    } else if (kind === op.sync && inode === folder) {
      const began = now;
      return () => syncEntries(began);
    } else if (file === undefined) throw new Error("the log does not say which file it is");
    else if (kind === op.write) write(file, offset, data);
    else if (kind === op.truncate) truncate(file, offset);
    else if (kind === op.sync && fault === lost) losePages(file);
    else if (kind === op.sync) return sync(file);
    return () => {};
  }

  for (const [name, data] of initial) {
    const file = makeFile();
    write(file, 0, data);
    sync(file)();
    enter(seen, [[name, file]]);
    enter(durable, [[name, file]]);
  }

  return {
    apply(record) {
      now = record.end;
      const { key, fault, data } = record;
      if (record.op !== op.done) {
        const expected = record.op === op.write ? data.length : 0;
        operations.set(key, { op: record.op, expected, fault, finish: begin(record) });
        return;
      }
      const operation = operations.get(key);
      operations.delete(key);
      if (record.offset === operation?.expected) operation.finish();
      else if (operation?.fault === 0) throw new Error("the real disk failed");
    },

    isChanging: () => [...operations.values()].some((operation) => operation.op !== op.sync),

    seen: () =>
      contentsOf(seen, ({ size }) => ({
        size: (size.list.at(-1) as Version<number>).value,
        read: ({ cached }) => cached,
      })),

    afterPowerCut(random) {
      const way = random.pick(["nothing", "everything", "in order", "pages", "sectors"]);
      const until = now - random.int(0, random.pick([10_000, 100_000, 1_000_000]));

      function pick<T>(list: Version<T>[]): Version<T> {
        const newest = list.length - 1;
        let index = random.int(0, newest);
        if (way === "nothing") index = 0;
        if (way === "everything") index = newest;
        if (way === "in order") index = list.findLastIndex(({ since }) => since <= until);
        return list[Math.max(index, 0)] as Version<T>;
      }

      function pickPage(list: Version<Buffer>[]): Buffer {
        if (way !== "sectors" || list.length === 1) return pick(list).value;
        const mixed = Buffer.alloc(pageSize);
        for (let at = 0; at < pageSize; at += sectorSize) {
          pick(list).value.copy(mixed, at, at, at + sectorSize);
        }
        return mixed;
      }

      const entries = new Map(durable);
      const counts = changes.map(({ since }, i) => ({ since, value: i + 1 }));
      const count = pick([{ since: 0, value: 0 }, ...counts]).value;
      for (const change of changes.slice(0, count)) enter(entries, change.entries);
      return contentsOf(entries, ({ size }) => {
        const { since, value } = pick(size.list);
        // What stood after a truncation goes with it, and what was written after it comes later.
        const next = size.list.find((each) => each.isCut && each.since > since)?.since ?? Infinity;
        return {
          size: value,
          read({ list }) {
            const cut = list.findLastIndex((each) => each.isCut && each.since <= since);
            const possible = list.filter((each, i) => i >= cut && each.since < next);
            return pickPage(possible.length === 0 ? list.slice(0, 1) : possible);
          },
        };
      });
    },
  };
}

function enter(entries: Map<string, File>, changes: EntryChange["entries"]): void {
  for (const [name, file] of changes) {
    if (file === undefined) entries.delete(name);
    else entries.set(name, file);
  }
}

function contentsOf(
  entries: Map<string, File>,
  view: (file: File) => { size: number; read(page: Page): Buffer },
): Files {
  return new Map(
    Array.from(entries, ([name, file]) => {
      const { size, read } = view(file);
      const data = Buffer.alloc(size);
      for (const [index, page] of file.pages) {
        if (index * pageSize < size) read(page).copy(data, index * pageSize);
      }
      return [name, data];
    }),
  );
}
