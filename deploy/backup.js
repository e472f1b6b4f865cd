// Copies the SQLite file at DATABASE_URL to a new file in a folder, which it never makes, then removes
// the files there that it made more than KEEP_DAYS (14) ago. Run it beside dist/:
//   node deploy/backup.js FOLDER
import { existsSync, mkdtempSync, readdirSync, renameSync, rmSync, statSync } from "node:fs";
import { join } from "node:path";
import { copyFile, databasePath, dayMs, findBackups, nameOf, syncPath } from "./backups.js";

const keepDays = process.env.KEEP_DAYS || "14";

/** How many of the last ones to keep, however old: the clock may be wrong. */
const minKept = 3;

async function makeBackup(folder) {
  if (!folder) throw new Error("name the folder of the backups");
  if (!/^[1-9]\d{0,3}$/.test(keepDays)) throw new Error("KEEP_DAYS must be a number of days");
  const source = databasePath();
  if (statSync(source).dev === statSync(folder).dev)
    console.error(`warning: ${folder} is on the disk of the records, and is lost with it`);

  const file = join(folder, nameOf(Date.now()));
  // Of runs that were killed; none takes a day.
  for (const name of readdirSync(folder).filter((each) => each.startsWith(".partial-")))
    if (statSync(join(folder, name)).mtimeMs < Date.now() - dayMs)
      rmSync(join(folder, name), { recursive: true });
  const partial = mkdtempSync(join(folder, ".partial-"));
  try {
    await copyFile(source, join(partial, "copy.db"));
    if (existsSync(file)) throw new Error(`${file} is there already`);
    renameSync(join(partial, "copy.db"), file);
  } finally {
    rmSync(partial, { recursive: true });
  }
  // A power cut could otherwise take the new one, after the older ones.
  syncPath(folder);
  console.log(`made ${file}`);

  const backups = findBackups(folder);
  const sizes = backups.map((name) => statSync(join(folder, name)).size);
  // What is served after a disk went away is a new file: its backups must not drive out the good ones.
  if (statSync(file).size * 2 < Math.max(...sizes))
    throw new Error(
      `${file} is less than half as large as an older backup, and none was removed: look whether ` +
        "records are missing; if none are, move the larger ones away",
    );
  const oldest = nameOf(Date.now() - Number(keepDays) * dayMs);
  // The restore of one that is in WAL mode, as `remove` leaves it, leaves two more.
  for (const name of backups.slice(0, -minKept).filter((each) => each < oldest))
    for (const suffix of ["", "-shm", "-wal"]) rmSync(join(folder, name + suffix), { force: true });
}

try {
  await makeBackup(process.argv[2]);
} catch ({ message }) {
  console.error(`error: ${message}`);
  process.exitCode = 1;
}
