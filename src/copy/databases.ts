import { DatabaseSync } from "node:sqlite";
import { equals } from "@bufbuild/protobuf";
import { Binary } from "mongodb";
import { type Investor, InvestorSchema } from "../../gen/investor/v1/investor_pb.js";
import { checkStored, textFields } from "../investor/investor.ts";
import type { Range } from "../investor/range.ts";
import { settleInsert } from "../service/replay.ts";
import { openStore, sqlitePathOf } from "../store/database-url.ts";
import { createMongoStore } from "../store/mongodb.ts";
import { createMongoClient } from "../store/mongodb-client.ts";
import { collectionName } from "../store/mongodb-documents.ts";
import { openSqliteFileToRead } from "../store/sqlite-file.ts";
import { columns, createSqliteReader } from "../store/sqlite-reader.ts";
import { DuplicateIdError, OutcomeUnknownError, type Store } from "../store/store.ts";
import type { Source, Tally, Target } from "./sides.ts";

/**
 * The time that a database may take for a batch, in milliseconds. An attempt gets a quarter, which
 * is more than an election takes by default; one whose outcome is open is repeated for the rest.
 */
const requestTimeoutMs = 60_000;
const attemptMs = requestTimeoutMs / 4;

const pageSize = 1_000;

/** How many ids of conflicts are shown. */
const maxIds = 10;

interface Reader {
  list(range: Range): Investor[] | Promise<Investor[]>;
  count(): Promise<number>;
  close(): Promise<void>;
}

/**
 * Opens a database to copy from. An SQLite file is never made or changed, and each page is read in
 * a transaction of its own, so that a service which uses it can bring in its log. MongoDB shows
 * every record that was acknowledged before.
 *
 * @throws {Error} if it cannot be used; if MongoDB holds no records, or documents that are none
 */
export async function openStoreSource(url: string): Promise<Source> {
  const path = sqlitePathOf(url);
  const { list, count, close } = path === undefined ? await openMongo(url) : openSqlite(path);
  // Where a file is damaged, the pages before that are copied.
  const total = await count().catch(() => undefined);
  let done = 0;

  async function* read() {
    try {
      let after: string | undefined;
      for (;;) {
        const page = await list({ after, limit: pageSize });
        page.forEach(checkStored);
        after = page.at(-1)?.id;
        if (after === undefined) return;
        done += page.length;
        yield page;
      }
    } finally {
      await close();
    }
  }

  return { batches: read(), partRead: () => total && Math.min(1, done / total) };
}

function openSqlite(path: string): Reader {
  const db = openSqliteFileToRead(path);
  const compare = db.prepare(
    `SELECT CAST(concat_ws('', ${columns}) AS BLOB) = CAST(? AS BLOB) AS isSame
      FROM investors WHERE id = unhex(?, '-')`,
  );
  const { list } = createSqliteReader(db, db, () => {});

  function listWhole(range: Range): Investor[] {
    const page = list(range);
    for (const investor of page) {
      const text = textFields.map((field) => investor[field]).join("");
      // What SQLite's driver shows for bytes that are no text.
      if (!text.includes("\ufffd")) continue;
      const compared = compare.get(investor.type + text, investor.id);
      if (compared?.isSame === 0)
        throw new Error(`the text of ${investor.id} is not valid Unicode`);
    }
    return page;
  }

  return { list: listWhole, count: async () => countRows(db), close: async () => db.close() };
}

async function openMongo(url: string): Promise<Reader> {
  const { client, db, connect } = createMongoClient(url, attemptMs);
  try {
    await connect();
    const collection = db.collection(collectionName);
    // A list passes over ids that are no UUIDs, which MongoDB orders before or after all others.
    for (const order of [1, -1] as const) {
      const options = { projection: { _id: 1 }, sort: { _id: order } };
      const document = await collection.findOne({}, options);
      // A database is not there until something is written to it.
      if (document === null) throw new Error("it holds no records");
      const id: unknown = document._id;
      const isUuid = id instanceof Binary && id.sub_type === Binary.SUBTYPE_UUID;
      if (!isUuid) throw new Error(`what it has under the id ${id} is no record`);
    }
    const estimate = await collection.estimatedDocumentCount().catch(() => 0);
    const store = createMongoStore(url, { requestTimeoutMs, observe() {} });
    return { ...store, count: async () => estimate };
  } finally {
    await client.close();
  }
}

/**
 * Opens a database to copy to, which is made if it is missing. What is there is never changed.
 *
 * @param onWarning called with what operators should know and change
 * @throws {Error} for operators, if it cannot be used
 */
export async function openStoreTarget(
  url: string,
  onWarning: (message: string) => void,
): Promise<Target> {
  const ignore = () => {};
  // A fatal error also fails the write that meets it.
  const callbacks = { observe: ignore, onWritable: ignore, onLogSize: ignore, onWarning };
  const store = await openStore(url, { requestTimeoutMs, ...callbacks, onFatal: ignore });
  // One of MongoDB is not connected yet.
  await store.ping();
  return {
    before: await countRecords(url),
    async write(investors, tally) {
      const writes = investors.map((investor) => write(store, investor, tally));
      await Promise.allSettled(writes);
      await Promise.all(writes);
    },
    finish: () => store.close(),
    close: () => store.close(),
  };
}

/** How many records an open database has; MongoDB estimates it, since it would read all of them. */
async function countRecords(url: string): Promise<number> {
  const path = sqlitePathOf(url);
  if (path === undefined) {
    const { client, db } = createMongoClient(url, requestTimeoutMs);
    const collection = db.collection(collectionName);
    return collection.estimatedDocumentCount().finally(() => client.close());
  }
  const db = new DatabaseSync(path, { readOnly: true });
  try {
    return countRows(db);
  } finally {
    db.close();
  }
}

function countRows(db: DatabaseSync): number {
  return Number(db.prepare("SELECT count(*) AS rows FROM investors").get()?.rows);
}

async function write(store: Store, investor: Investor, tally: Tally): Promise<void> {
  try {
    await store.insert(investor);
    tally.copied += 1;
  } catch (error) {
    const isOpen = error instanceof OutcomeUnknownError;
    if (!isOpen && !(error instanceof DuplicateIdError)) throw error;
    const { signal } = new AbortController();
    const replayMs = requestTimeoutMs - attemptMs;
    const stored = await settleInsert(store, investor, error, replayMs, signal);
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
