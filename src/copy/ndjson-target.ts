import { fstatSync, fsync, lstatSync, renameSync, rmSync, writeFile } from "node:fs";
import { open, rm } from "node:fs/promises";
import { dirname } from "node:path";
import { promisify } from "node:util";
import { toJson } from "../investor/json.ts";
import { syncPath } from "../store/sqlite/paths.ts";
import type { Target } from "./source-and-target.ts";

/**
 * Writes records in plain JSON, one per line, to a new file that only its owner can read. Until it
 * is complete, its name ends in `.partial`; a leftover of that name is replaced.
 *
 * @throws {Error} the file exists, or cannot be created
 */
export async function openNdjsonTarget(path: string): Promise<Target> {
  refuseExisting(path);
  const partial = `${path}.partial`;
  // Fails now if the folder cannot be synced, rather than at the end.
  syncPath(dirname(path));
  await rm(partial, { force: true });
  const file = await open(partial, "wx", 0o600);
  const { ino } = await file.stat();
  // No other file can have its inode number while it is open.
  const isOurs = (name: string) => lstatSync(name, { throwIfNoEntry: false })?.ino === ino;
  return {
    write: createLineWriter((text) => file.writeFile(text)),
    async finish() {
      await file.sync();
      if (!isOurs(partial)) throw new Error(`another copy writes to it, or ${partial} was moved`);
      refuseExisting(path);
      renameSync(partial, path);
      try {
        syncPath(dirname(path));
      } catch (error) {
        // A power cut could undo the new name; with the old one, the copy can be repeated.
        renameSync(path, partial);
        throw error;
      }
    },
    async close() {
      // Synchronous, so that a sync in flight cannot finish in between.
      if (isOurs(partial)) rmSync(partial);
      await file.close();
    },
  };
}

function refuseExisting(path: string): void {
  if (lstatSync(path, { throwIfNoEntry: false }) === undefined) return;
  throw new Error("it already exists: move it away, or name another");
}

/** Like {@link openNdjsonTarget}, to standard output. */
export function openStdoutTarget(): Target {
  const { stdout } = process;
  const isFile = fstatSync(stdout.fd).isFile();
  // To a file, the stream would report a write that a full disk cut short as complete.
  const write = isFile
    ? (text: string) => promisify(writeFile)(stdout.fd, text)
    : promisify<string, void>((text, done) => void stdout.write(text, done));
  // Each write reports its own failure.
  stdout.on("error", () => {});
  return {
    write: createLineWriter(write),
    async finish() {
      if (isFile) await promisify(fsync)(stdout.fd);
    },
    async close() {},
  };
}

/** Writes batches as lines, one after the other. */
function createLineWriter(write: (text: string) => Promise<void>): Target["write"] {
  let last: Promise<void> = Promise.resolve();
  return (investors, tally) => {
    last = last.then(async () => {
      await write(investors.map((investor) => `${toJson(investor)}\n`).join(""));
      tally.copied += investors.length;
    });
    return last;
  };
}
