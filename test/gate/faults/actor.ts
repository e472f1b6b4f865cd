/**
 * What uses an SQLite file, as a process that can be stopped and killed at any instant: a store, or
 * another program. Lines in its journal say which records it asks for (`?ID`), which of them are
 * acknowledged (`+ID`), which it removes (`-ID`), and that a store is open (`open`). Ids are without hyphens.
 *
 *   node actor.ts ROLE FILE JOURNAL SEED
 */
import { appendFileSync } from "node:fs";
import { basename, dirname } from "node:path";
import { backup, DatabaseSync } from "node:sqlite";
import { setTimeout as delay } from "node:timers/promises";
import { stringify, v4 } from "uuid";
import { maxTextLength } from "../../../src/investor/investor.ts";
import type { Store } from "../../../src/store/store.ts";
import {
  copyHere,
  idOf,
  insertInto,
  makeSqlite,
  openSqlite,
  removeHere,
} from "../../support/copying.ts";
import { createRandom } from "../../support/random.ts";
import { anInvestor } from "../../support/records.ts";

const [role = "", path = "", journal = "", seed] = process.argv.slice(2);
const random = createRandom(Number(seed));
const note = (line: string) => appendFileSync(journal, `${line}\n`);
let isOver = false;
process.once("SIGTERM", () => {
  isOver = true;
});

/** Records of which each is anywhere in the table, some of them large. */
function requestRecords() {
  return Array.from({ length: random.int(1, 12) }, () => {
    const record = anInvestor({
      id: v4(),
      city: random.pick(["", "\u{1F3E0}".repeat(maxTextLength)]),
    });
    note(`?${idOf(record)}`);
    return record;
  });
}

/** The file as another program opens it. */
const openPlain = () => new DatabaseSync(path, { timeout: 5_000 });

/** Closes a store, which rejects beside others. */
const close = (store: Store) => store.close().catch(console.error);

async function copyAll(from: string, to: string): Promise<void> {
  const { code, told } = await copyHere([`sqlite:${from}`, `sqlite:${to}`], { folder: "." });
  if (code !== 0) throw new Error(told);
}

const roles: Record<string, () => unknown> = {
  async service() {
    const store = await openSqlite(path);
    note("open");
    while (!isOver) {
      const insert = (record: ReturnType<typeof anInvestor>) =>
        store.insert(record).then(() => note(`+${idOf(record)}`));
      await Promise.allSettled(requestRecords().map(insert));
      await store.list({ limit: random.int(1, 500) });
      await delay(random.int(0, 30));
    }
    await close(store);
  },

  /** A start and the end of it. */
  start: async () => close(await openSqlite(path)),

  async reader() {
    const db = openPlain();
    while (!isOver) {
      db.exec("BEGIN; SELECT count(*) FROM investors");
      await delay(random.int(0, 300));
      db.exec("ROLLBACK");
    }
    db.close();
  },

  writer() {
    const values = `unhex(?, '-'), 1, ?${", ''".repeat(10)}`;
    const insert = openPlain().prepare(`${insertInto} VALUES (${values})`);
    for (const record of requestRecords()) {
      insert.run(record.id, record.firstName);
      note(`+${idOf(record)}`);
    }
  },

  async remove() {
    const row = openPlain().prepare("SELECT id FROM investors LIMIT 1").get();
    const id = stringify(row?.id as Uint8Array);
    note(`-${idOf({ id })}`);
    await removeHere(".", `sqlite:${path}`, id);
  },

  async "copy to"() {
    const source = `${journal}.source`;
    const records = await makeSqlite(dirname(source), basename(source), 50);
    for (const record of records) note(`?${idOf(record)}`);
    await copyAll(source, path);
    for (const record of records) note(`+${idOf(record)}`);
  },
  copy: () => copyAll(path, `${path}.copy`),

  // In one step: it begins again whenever a service commits between two.
  backup: () => backup(openPlain(), `${path}.copy`, { rate: 1_000_000 }),
  "VACUUM INTO": () => openPlain().exec(`VACUUM INTO '${path}.copy'`),
  VACUUM: () => openPlain().exec("VACUUM"),
  checkpoint: () => openPlain().exec("PRAGMA wal_checkpoint(PASSIVE)"),
};

await roles[role]?.();
