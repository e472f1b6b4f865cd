import { fdatasync, fstatSync, lstatSync, renameSync, writeFile } from "node:fs";
import { open, rm } from "node:fs/promises";
import { dirname } from "node:path";
import { promisify } from "node:util";
import { toJson } from "../service/plain-json.ts";
import { syncFolder } from "../store/folder.ts";
import type { Target } from "./sides.ts";

/** How much may be written without a sync, in characters. */
const maxUnsynced = 4 * 1024 * 1024;

/**
 * Writes records in plain JSON, one a line, to a file that is not there yet, for its owner alone.
 * Until it is whole its name ends in `.partial`; what another run left under that name is
 * replaced.
 *
 * @throws {Error} the file is there, or cannot be made
 */
export async function openNdjsonTarget(path: string): Promise<Target> {
  refuseExisting(path);
  const partial = `${path}.partial`;
  // A folder that cannot be synced would fail the copy at its end.
  syncFolder(dirname(path));
  await rm(partial, { force: true });
  const file = await open(partial, "wx", 0o600);
  const { ino } = await file.stat();
  // While the file is open, no other has its inode number.
  const isOurs = () => lstatSync(partial, { throwIfNoEntry: false })?.ino === ino;
  return {
    write: createLineWriter(
      (text) => file.writeFile(text),
      () => file.datasync(),
    ),
    async finish() {
      await file.sync();
      if (!isOurs()) throw new Error(`another copy writes to it, or ${partial} was moved`);
      refuseExisting(path);
      renameSync(partial, path);
      syncFolder(dirname(path));
    },
    async close() {
      if (isOurs()) await rm(partial);
      await file.close();
    },
  };
}

function refuseExisting(path: string): void {
  if (lstatSync(path, { throwIfNoEntry: false }) === undefined) return;
  throw new Error("it is there already: move it away, or name another");
}

/** The same to standard output. */
export function openStdoutTarget(): Target {
  const { stdout } = process;
  const isFile = fstatSync(stdout.fd).isFile();
  // Where it is a file, its stream takes a write that a full disk cut short for a whole one.
  const write = isFile
    ? (text: string) => promisify(writeFile)(stdout.fd, text)
    : promisify<string, void>((text, done) => void stdout.write(text, done));
  const sync = async () => {
    if (isFile) await promisify(fdatasync)(stdout.fd);
  };
  // Each write reports its own failure.
  stdout.on("error", () => {});
  return { write: createLineWriter(write, sync), finish: sync, async close() {} };
}

/**
 * Writes batches as lines, and syncs now and then: what piled up until the end would hold up the
 * commits of a service on the same disk for as long as it takes to write.
 */
function createLineWriter(
  write: (text: string) => Promise<void>,
  sync: () => Promise<void>,
): Target["write"] {
  let unsynced = 0;
  return async (investors, tally) => {
    const text = investors.map((investor) => `${toJson(investor)}\n`).join("");
    await write(text);
    unsynced += text.length;
    if (unsynced >= maxUnsynced) {
      await sync();
      unsynced = 0;
    }
    tally.copied += investors.length;
  };
}
