// Puts a backup, or the newest one in a folder, in the place of the SQLite file at DATABASE_URL, while
// the service is stopped. What was there moves into a folder beside it. Run it beside dist/:
//   node deploy/restore.js FILE|FOLDER
import {
  chownSync,
  existsSync,
  linkSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  realpathSync,
  renameSync,
  rmdirSync,
  rmSync,
  statSync,
} from "node:fs";
import { basename, dirname, join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import {
  copyFile,
  databasePath,
  findBackups,
  hasCode,
  resultCode,
  syncPath,
  timeOf,
} from "./backups.js";

async function restore(from) {
  if (!from) throw new Error("name the backup, or the folder of the backups");
  const named = databasePath();
  const backup = findBackup(from);
  // A link to what is not there, as on a disk that is not mounted, is an error.
  const path = lstatSync(named, { throwIfNoEntry: false }) ? realpathSync(named) : named;
  const folder = dirname(path);
  console.log(`restoring ${backup}, made ${ageOf(backup)} ago`);

  // Of runs that were killed before the backup got its place.
  const prefix = `${basename(path)}.`;
  for (const name of readdirSync(folder).filter((each) => each.startsWith(prefix)))
    if (timeOf(`${name.slice(prefix.length)}.db`) >= 0 && existsSync(join(folder, name, ".copy")))
      clearUp(join(folder, name));
  const old = `${path}.${new Date().toISOString().replaceAll(":", "-")}`;
  mkdirSync(old, { mode: 0o700 });
  const copy = join(old, ".copy");
  try {
    await copyFile(backup, copy);
    const { uid, gid } = statSync(folder);
    if (process.getuid() === 0) for (const each of [old, copy]) chownSync(each, uid, gid);
    // Second names, so that at each moment there is either the old file with its WAL or the new one.
    for (const name of ["", "-wal", "-journal"].map((suffix) => path + suffix)) {
      if (!existsSync(name)) continue;
      const secondName = join(old, basename(name));
      linkSync(name, secondName);
      // Before the WAL has a second name.
      if (name === path && isUsed(secondName))
        throw new Error(`another process uses ${path}: stop it first`);
    }
    syncPath(old);
    syncPath(folder);
    renameSync(copy, path);
  } catch ({ message }) {
    rmSync(old, { recursive: true });
    throw new Error(`${message}; nothing was changed`);
  }
  for (const suffix of ["-wal", "-shm", "-journal"]) rmSync(path + suffix, { force: true });
  const isEmpty = readdirSync(old).length === 0;
  if (isEmpty) rmdirSync(old);
  else syncPath(old);
  syncPath(folder);
  console.log(`restored ${backup}${isEmpty ? "" : `; what was there before is in ${old}`}`);
}

/**
 * Whether SQLite is open on a file under another name, where it has its WAL: under this one there is
 * none, so that the look changes nothing.
 */
function isUsed(file) {
  try {
    using db = new DatabaseSync(file);
    db.exec("PRAGMA locking_mode = EXCLUSIVE; PRAGMA user_version");
    return false;
  } catch (error) {
    // A file that cannot be opened is replaced all the same.
    return hasCode(error, resultCode.busy);
  }
}

/** Removes a copy that was begun, and the second names of files; those without another name stay. */
function clearUp(folder) {
  for (const name of readdirSync(folder)) {
    const file = join(folder, name);
    if (name.startsWith(".copy") || statSync(file).nlink > 1) rmSync(file);
  }
  if (readdirSync(folder).length === 0) rmdirSync(folder);
}

/** The file itself, or the newest backup in a folder. */
function findBackup(path) {
  const isFolder = statSync(path, { throwIfNoEntry: false })?.isDirectory();
  if (!isFolder && existsSync(path)) return path;
  const folder = isFolder ? path : dirname(path);
  const backups = findBackups(folder);
  const newest = backups.at(-1);
  if (isFolder && newest !== undefined) return join(folder, newest);
  throw new Error(`there is no such backup; ${folder} has ${backups.join(", ") || "none"}`);
}

/** How long ago a backup was made: by its name or, if it has another one, its last change. */
function ageOf(backup) {
  const madeAt = timeOf(basename(backup)) || statSync(backup).mtimeMs;
  const hours = (Date.now() - madeAt) / 3_600_000;
  return hours < 48 ? `${hours.toFixed(1)} hours` : `${Math.round(hours / 24)} days`;
}

try {
  await restore(process.argv[2]);
} catch ({ message }) {
  console.error(`error: ${message}`);
  process.exitCode = 1;
}
