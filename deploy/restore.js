// Puts a backup, or the newest one in a folder, in the place of the SQLite file at DATABASE_URL, while
// the service is stopped. What was there moves into a folder beside it. Run it beside dist/:
//   node deploy/restore.js FILE|FOLDER
import { spawnSync } from "node:child_process";
import {
  chownSync,
  existsSync,
  linkSync,
  mkdirSync,
  readdirSync,
  realpathSync,
  renameSync,
  rmdirSync,
  rmSync,
  statSync,
} from "node:fs";
import { basename, dirname, join, resolve } from "node:path";

const { DATABASE_URL = "sqlite:data/investors.db" } = process.env;

function restore(from) {
  const [, named] = /^sqlite:(?:\/\/+(?=\/))?(.*)/.exec(DATABASE_URL) ?? [];
  if (named === undefined) throw new Error("DATABASE_URL must be of an SQLite file");
  if (from === undefined) throw new Error("name the backup, or the folder of the backups");
  const backup = findBackup(from);
  const path = existsSync(named) ? realpathSync(named) : named;
  const owner = statSync(dirname(path));

  const old = `${path}.${new Date().toISOString().replaceAll(":", "-")}`;
  mkdirSync(old, { mode: 0o700 });
  const copy = join(old, "copy.db");
  try {
    const args = ["dist/bin.js", "copy", `sqlite:${resolve(backup)}`, `sqlite:${resolve(copy)}`];
    const { status, signal } = spawnSync(process.execPath, args, { stdio: "inherit" });
    if (status !== 0) throw new Error(`the copy ended with ${status ?? signal}`);
    if (process.getuid() === 0)
      for (const each of [old, copy]) chownSync(each, owner.uid, owner.gid);
  } catch ({ message }) {
    rmSync(old, { recursive: true });
    throw new Error(`${message}; nothing was changed`);
  }

  // At each moment there is either the old file or the new one, and never an old file without its log.
  if (existsSync(path)) linkSync(path, join(old, basename(path)));
  renameSync(copy, path);
  for (const suffix of ["-wal", "-shm", "-journal"])
    if (existsSync(path + suffix)) renameSync(path + suffix, join(old, basename(path) + suffix));
  const isEmpty = readdirSync(old).length === 0;
  if (isEmpty) rmdirSync(old);
  console.log(`restored ${backup}${isEmpty ? "" : `; what was there before is in ${old}`}`);
}

/** The file itself, or the newest in a folder by its name. */
function findBackup(path) {
  const folder = statSync(path, { throwIfNoEntry: false })?.isDirectory() ? path : dirname(path);
  const backups = readdirSync(folder)
    .filter((name) => name.endsWith(".db"))
    .toSorted();
  if (path !== folder && existsSync(path)) return path;
  const newest = backups.at(-1);
  if (path === folder && newest !== undefined) return join(folder, newest);
  throw new Error(`there is no such backup; ${folder} has ${backups.join(", ") || "none"}`);
}

try {
  restore(process.argv[2]);
} catch ({ message }) {
  console.error(`error: ${message}`);
  process.exitCode = 1;
}
