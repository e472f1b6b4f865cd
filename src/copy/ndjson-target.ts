import { fstatSync, fsync, lstatSync, renameSync, rmSync, writeFile } from "node:fs";
import { open, rm } from "node:fs/promises";
import { dirname } from "node:path";
import { promisify } from "node:util";
import { toJson } from "../investor/json.ts";
import { syncPath } from "../store/sqlite/paths.ts";
import type { Target } from "./source-and-target.ts";

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
  syncPath(dirname(path));
  await rm(partial, { force: true });
  const file = await open(partial, "wx", 0o600);
  const { ino } = await file.stat();
  // While the file is open, no other has its inode number.
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
        // So that it can be repeated: a power cut could take the name away again.
        renameSync(path, partial);
        throw error;
      }
    },
    isThere: () => isOurs(path),
    async close() {
      // At once, so that a sync which is in flight does not end in between.
      if (isOurs(partial)) rmSync(partial);
      await file.close();
    },
  };
}

function refuseExisting(path: string): void {
  if (lstatSync(path, { throwIfNoEntry: false }) === undefined) return;
  throw new Error("it already exists: move it away, or name another");
}

/** The same to standard output. */
export function openStdoutTarget(): Target {
  const { stdout } = process;
  const isFile = fstatSync(stdout.fd).isFile();
  // If it is a file, its stream would take a write that a full disk cut short for a whole one.
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

/** Writes one batch after the other as lines. */
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
