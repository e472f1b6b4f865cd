// Copies the records at DATABASE_URL to a new file in a folder, which it never makes, then removes
// the files there that it made more than KEEP_DAYS (14) ago. Run it beside dist/:
//   node deploy/backup.js FOLDER
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, readdirSync, renameSync, rmSync, statSync } from "node:fs";
import { join, resolve } from "node:path";

const { DATABASE_URL = "sqlite:data/investors.db", KEEP_DAYS = "14" } = process.env;
const dayMs = 86_400_000;

/** The name of a backup that is made at a time: names in order are times in order. */
const nameOf = (time) => `${new Date(time).toISOString().replaceAll(":", "-")}.db`;
const isBackup = (name) => /^\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d{3}Z\.db$/.test(name);

async function makeBackup(folder) {
  if (folder === undefined) throw new Error("name the folder of the backups");
  if (!/^[1-9]\d{0,3}$/.test(KEEP_DAYS)) throw new Error("KEEP_DAYS must be a number of days");
  const { dev } = statSync(folder);
  const [, source] = /^sqlite:(?:\/\/+(?=\/))?(.*)/.exec(DATABASE_URL) ?? [];
  if (source !== undefined && statSync(source).dev === dev)
    console.error(`warning: ${folder} is on the disk of the records, and is lost with it`);

  const file = join(folder, nameOf(Date.now()));
  // Of runs that were killed; none takes a day.
  for (const name of readdirSync(folder).filter((each) => each.startsWith(".partial-")))
    if (statSync(join(folder, name)).mtimeMs < Date.now() - dayMs)
      rmSync(join(folder, name), { recursive: true });
  const partial = mkdtempSync(join(folder, ".partial-"));
  try {
    await copyTo(join(partial, "copy.db"));
    if (existsSync(file)) throw new Error(`${file} is there already`);
    renameSync(join(partial, "copy.db"), file);
  } finally {
    rmSync(partial, { recursive: true });
  }
  console.log(`made ${file}`);

  const backups = readdirSync(folder).filter(isBackup);
  const sizes = backups.map((name) => statSync(join(folder, name)).size);
  // What is served after a disk went away is a new file: its backups must not drive out the good ones.
  if (statSync(file).size * 2 < Math.max(...sizes))
    throw new Error(
      `${file} is less than half as large as an older backup, and none was removed: look whether ` +
        "records are missing; if none are, move the larger ones away",
    );
  const oldest = nameOf(Date.now() - Number(KEEP_DAYS) * dayMs);
  // A restore leaves two more.
  for (const name of backups.filter((each) => each < oldest))
    for (const suffix of ["", "-shm", "-wal"]) rmSync(join(folder, name + suffix), { force: true });
}

async function copyTo(target) {
  const copy = spawn(
    process.execPath,
    ["dist/bin.js", "copy", "env:DATABASE_URL", `sqlite:${resolve(target)}`],
    { env: { ...process.env, DATABASE_URL }, stdio: "inherit" },
  );
  for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => copy.kill(signal));
  const [status, signal] = await once(copy, "exit");
  if (status !== 0) throw new Error(`the copy ended with ${status ?? signal}`);
}

try {
  await makeBackup(process.argv[2]);
} catch ({ message }) {
  console.error(`error: ${message}`);
  process.exitCode = 1;
}
