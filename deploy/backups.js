// What backup.js and restore.js share: the database, the names of backups, and how a file is copied.
import { closeSync, fsyncSync, openSync, readdirSync } from "node:fs";
import { resolve } from "node:path";
import { backup, DatabaseSync } from "node:sqlite";
import { pathToFileURL } from "node:url";

const service = await import(pathToFileURL(resolve("dist/deploy.js")));
const { beginCount, explainError, openSqliteFileToRead, parseDatabaseUrl, refuseDamage } = service;

export const { hasCode, resultCode, syncPath } = service;

export const dayMs = 86_400_000;

/** How many pages to copy, and to sync, before a signal is looked for. */
const pagesAtOnce = 1_000;

let stoppedBy;
for (const signal of ["SIGINT", "SIGTERM"])
  process.on(signal, () => {
    stoppedBy = signal;
  });

/** The SQLite file at DATABASE_URL. */
export function databasePath() {
  const url = process.env.DATABASE_URL || "sqlite:data/investors.db";
  const database = parseDatabaseUrl("DATABASE_URL", url);
  if (database.kind === "sqlite") return database.path;
  throw new Error("DATABASE_URL is of MongoDB: use mongodump and mongorestore (docs/backup.md)");
}

/** The name of a backup that is made at a time: names in order are times in order. */
export const nameOf = (time) => `${new Date(time).toISOString().replaceAll(":", "-")}.db`;

/** The time at which a backup was made, by its name; NaN if it is not the name of a backup. */
export function timeOf(name) {
  const [, date, time = ""] = /^(\d{4}-\d\d-\d\d)(T\d\d-\d\d-\d\d\.\d{3}Z)\.db$/.exec(name) ?? [];
  return Date.parse(date + time.replaceAll("-", ":"));
}

/** The names of the backups in a folder, oldest first, without those that a wrong clock has named. */
export function findBackups(folder) {
  const names = readdirSync(folder).filter((name) => timeOf(name) >= 0);
  // The next backup of a day is newer than one that is ahead by less.
  const isAhead = (name) => timeOf(name) > Date.now() + dayMs;
  for (const name of names.filter(isAhead))
    console.error(`warning: the name of ${name} is ahead of now: it is not taken for the newest`);
  return names.filter((name) => !isAhead(name)).toSorted();
}

/** Copies an SQLite file, which a service may be using, to a new one for its owner alone, durably. */
export async function copyFile(from, to) {
  // Closed last: this would drop the locks of SQLite on the file.
  const file = openSync(to, "wx", 0o600);
  try {
    using source = openSqliteFileToRead(from);
    // Without a transaction of all steps, each commit of the service would make it begin again.
    source.exec("BEGIN; SELECT id FROM investors LIMIT 1");
    const progress = () => {
      if (stoppedBy) throw new Error(`stopped by ${stoppedBy}`);
      fsyncSync(file);
    };
    await backup(source, to, { rate: pagesAtOnce, progress });
    using copy = new DatabaseSync(to);
    // A single file, whose count no WAL of another one follows.
    copy.exec("PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = DELETE; BEGIN IMMEDIATE");
    beginCount(copy);
    copy.exec("COMMIT");
    refuseDamage(copy);
  } catch (error) {
    // What is only read needs no room.
    const isOfTarget = hasCode(error, resultCode.full, resultCode.writeError);
    const what = isOfTarget ? `write ${to}` : `copy ${from} to ${to}`;
    throw new Error(`cannot ${what}: ${explainError(error)}`);
  } finally {
    closeSync(file);
  }
}
