import { existsSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as delay, setImmediate as nextTurn } from "node:timers/promises";
import { equals } from "@bufbuild/protobuf";
import { type Investor, InvestorSchema } from "../../gen/investor/v1/investor_pb.js";
import { findViolations, textFields } from "../investor/investor.ts";
import { toMember } from "../investor/json.ts";
import type { Range } from "../investor/paging.ts";
import { settleInsert } from "../service/replay.ts";
import { openStore, sqlitePathOf } from "../store/database-url.ts";
import { createMongoClient } from "../store/mongodb/client.ts";
import { collectionName } from "../store/mongodb/documents.ts";
import { createMongoStore } from "../store/mongodb/mongodb.ts";
import { bringInWal } from "../store/sqlite/checkpoint.ts";
import { openSqliteFileToRead } from "../store/sqlite/file.ts";
import { createSqliteReader } from "../store/sqlite/reader.ts";
import { selected } from "../store/sqlite/schema.ts";
import { DuplicateIdError, maxListed, OutcomeUnknownError, type Store } from "../store/store.ts";
import { checkIntegrity } from "./integrity.ts";
import {
  describeViolations,
  type OnFault,
  type Source,
  type Tally,
  type Target,
} from "./source-and-target.ts";

/**
 * Deadline of a batch, in milliseconds. An attempt gets a quarter of it, more than a default
 * election takes; an attempt with an unknown outcome is retried for the rest.
 */
const requestTimeoutMs = 60_000;
const attemptMs = requestTimeoutMs / 4;

/** Batch size for an SQLite file that other processes use. */
const politeSize = 500;

/** How long to wait for other processes that keep the target's WAL in use, in milliseconds. */
const walTimeoutMs = 30_000;

/** How many conflicting ids to print. */
const maxIds = 10;

interface Reader {
  list(range: Range): Investor[] | Promise<Investor[]>;
  count(): Promise<number>;
  /** A fault of a record beyond those of its fields. */
  faultOf?(investor: Investor): string | undefined;
  findDamage?(signal: AbortSignal): Promise<void>;
  close(): Promise<void>;
}

/**
 * Opens a database to copy from. An SQLite file is never created or changed, and each page is read in
 * its own transaction, so that a service can checkpoint its WAL meanwhile. From MongoDB, every record
 * that was acknowledged before is read.
 *
 * @param onFault called with the id of each record that is skipped
 * @throws {Error} if it cannot be used; if MongoDB has no records, or documents that are not records
 */
export async function openStoreSource(url: string, onFault: OnFault): Promise<Source> {
  const path = sqlitePathOf(url);
  const reader = path === undefined ? await openMongo(url) : openSqlite(path);
  // If damage stops the count, the pages before it can still be copied.
  const total = await reader.count().catch(() => undefined);
  let done = 0;

  async function* read() {
    try {
      let after: string | undefined;
      for (;;) {
        const page = await reader.list({ after, limit: maxListed });
        after = page.at(-1)?.id;
        if (after === undefined) return;
        done += page.length;
        yield page.filter(isRight);
      }
    } finally {
      await reader.close();
    }
  }

  function isRight(investor: Investor): boolean {
    const { id } = investor;
    const violations = findViolations(investor);
    const named = violations.map((each) => ({ ...each, field: toMember(each.field) }));
    const why = describeViolations(named) || reader.faultOf?.(investor);
    if (why) onFault(id, why);
    return !why;
  }

  return {
    batches: read(),
    partRead: () => total && Math.min(1, done / total),
    findDamage: reader.findDamage,
  };
}

function openSqlite(path: string): Reader {
  const db = openSqliteFileToRead(path);
  const compare = db.prepare(
    `SELECT CAST(concat_ws('', ${selected}) AS BLOB) = CAST(? AS BLOB) AS isSame
      FROM investors WHERE id = unhex(?, '-')`,
  );
  const { list } = createSqliteReader(db, db, () => {});

  return {
    list,
    faultOf(investor) {
      const text = textFields.map((field) => investor[field]).join("");
      // The driver's replacement for bytes that are not text.
      if (!text.includes("\ufffd")) return undefined;
      const isSame = compare.get(investor.type + text, investor.id)?.isSame !== 0;
      return isSame ? undefined : "its text is not valid Unicode";
    },
    count: () => countRows(db),
    findDamage: (signal) => checkIntegrity(path, signal),
    close: async () => db.close(),
  };
}

async function openMongo(url: string): Promise<Reader> {
  const store = createMongoStore(url, { requestTimeoutMs, observe() {} }, true);
  try {
    await store.ping();
    // MongoDB creates a database only on the first write, so an empty one may be a wrong name.
    if ((await store.list({ limit: 1 })).length === 0) throw new Error("it holds no records");
    return { ...store, count: () => countRecords(url) };
  } catch (error) {
    await store.close();
    throw error;
  }
}

/**
 * Opens a database to copy to, creating it if missing. Existing records are never changed.
 *
 * @param onWarning called with warnings that operators should act on
 * @throws {Error} for operators, if it cannot be used
 */
export async function openStoreTarget(
  url: string,
  onWarning: (message: string) => void,
): Promise<Target> {
  const path = sqlitePathOf(url);
  // The WAL exists while a process uses the file, and after a crash.
  const isInUse = path !== undefined && existsSync(`${path}-wal`);
  // A fatal error also fails the write that causes it.
  const store = await openStore(url, { requestTimeoutMs, observe() {}, onWarning, onFatal() {} });
  // A MongoDB store is not connected yet.
  await store.ping();

  async function writeAll(investors: Investor[], tally: Tally): Promise<void> {
    const writes = investors.map((investor) => write(store, investor, tally));
    await Promise.allSettled(writes);
    await Promise.all(writes);
  }

  return {
    before: await countRecords(url),
    write: isInUse ? giveWay(writeAll) : writeAll,
    async finish() {
      if (path === undefined) return store.close();
      // Fails if the file that was written is no longer at this path.
      await store.ping();
      // The file has to be complete without its WAL; `bringInWal` retries the checkpoint that closing makes.
      await store.close().catch(() => {});
      await bringInWal(path, walTimeoutMs);
    },
    close: () => store.close(),
  };
}

/**
 * Writes small batches, and after each leaves the write lock free for as long as the batch took:
 * SQLite polls rarely for a lock that others hold.
 */
function giveWay(write: Target["write"]): Target["write"] {
  let last: Promise<void> = Promise.resolve();
  return (investors, tally) => {
    last = last.then(async () => {
      for (let i = 0; i < investors.length; i += politeSize) {
        const start = performance.now();
        await write(investors.slice(i, i + politeSize), tally);
        await delay(performance.now() - start);
      }
    });
    return last;
  };
}

/** Counts the records of an open database; an estimate for MongoDB, which would have to read all of them. */
async function countRecords(url: string): Promise<number> {
  const path = sqlitePathOf(url);
  if (path === undefined) {
    const { client, db } = createMongoClient(url, attemptMs);
    const collection = db.collection(collectionName);
    return collection.estimatedDocumentCount().finally(() => client.close());
  }
  using db = new DatabaseSync(path, { readOnly: true });
  return await countRows(db);
}

/** Counts the records of a file, in chunks, so that signals are handled in between. */
async function countRows(db: DatabaseSync): Promise<number> {
  const next = "SELECT id FROM investors WHERE id > ? ORDER BY id LIMIT 10000";
  const countPart = db.prepare(`SELECT count(*) AS rows, max(id) AS last FROM (${next})`);
  let total = 0;
  for (let after = new Uint8Array(); ; await nextTurn()) {
    const { rows, last } = countPart.get(after) as { rows: number; last: Uint8Array | null };
    total += rows;
    // Ids on a damaged page need not ascend.
    if (last === null || Buffer.compare(last, after) <= 0) return total;
    after = last as Uint8Array<ArrayBuffer>;
  }
}

async function write(store: Store, investor: Investor, tally: Tally): Promise<void> {
  try {
    await store.insert(investor);
    tally.copied += 1;
  } catch (error) {
    const isOpen = error instanceof OutcomeUnknownError;
    if (!isOpen && !(error instanceof DuplicateIdError)) throw error;
    const { signal } = new AbortController();
    const replayUntil = performance.now() + requestTimeoutMs - attemptMs;
    const stored = await settleInsert(store, investor, error, replayUntil, signal);
    if (stored instanceof Error) throw stored;
    if (!equals(InvestorSchema, stored, investor)) {
      tally.conflicts += 1;
      if (tally.conflicts <= maxIds) tally.conflictingIds.push(investor.id);
    } else if (isOpen) {
      tally.copied += 1;
    } else {
      tally.present += 1;
    }
  }
}
