import { fdatasync, fstatSync, fsyncSync, lstatSync, writeFile } from "node:fs";
import { open, rename, rm } from "node:fs/promises";
import { dirname } from "node:path";
import { promisify } from "node:util";
import { toJson } from "../service/plain-json.ts";
import { syncFolder } from "../store/folder.ts";
import type { Target } from "./copier.ts";

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
  if (lstatSync(path, { throwIfNoEntry: false }) !== undefined) {
    throw new Error("it is there already: move it away, or name another");
  }
  const partial = `${path}.partial`;
  // What fails here would fail once it is written.
  syncFolder(dirname(path));
  await rm(partial, { force: true });
  const file = await open(partial, "wx", 0o600);
  const { dev, ino } = await file.stat({ bigint: true });
  const writeLines = createLines(
    (text) => file.writeFile(text),
    () => file.datasync(),
  );
  let isFinished = false;

  function isOurs(name: string): boolean {
    const there = lstatSync(name, { bigint: true, throwIfNoEntry: false });
    return there?.dev === dev && there.ino === ino;
  }

  function refuseCompany(): void {
    if (!isOurs(partial)) throw new Error(`another copy writes to it, or ${partial} was moved`);
    if (lstatSync(path, { throwIfNoEntry: false }) !== undefined) {
      throw new Error("another program made it meanwhile");
    }
  }

  return {
    async write(investors, tally) {
      refuseCompany();
      await writeLines(investors, tally);
    },
    async finish() {
      await file.sync();
      refuseCompany();
      await rename(partial, path);
      // Another copy can have replaced it at the last moment.
      if (!isOurs(path)) throw new Error("another copy writes to it");
      syncFolder(dirname(path));
      await file.close();
      isFinished = true;
    },
    async close() {
      if (isFinished) return;
      // While the file is open, no other has its inode number.
      for (const name of [partial, path]) if (isOurs(name)) await rm(name);
      await file.close();
    },
  };
}

/** The same to standard output. */
export function createStdoutTarget(): Target {
  const { stdout } = process;
  const isFile = fstatSync(stdout.fd).isFile();
  // Where it is a file, its stream takes a write that the disk cut short for a whole one.
  const write = isFile
    ? (text: string) => promisify(writeFile)(stdout.fd, text)
    : promisify<string, void>((text, done) => void stdout.write(text, done));
  // Each write reports its own failure.
  stdout.on("error", () => {});
  return {
    write: createLines(write, async () => {
      if (isFile) await promisify(fdatasync)(stdout.fd);
    }),
    async finish() {
      if (isFile) fsyncSync(stdout.fd);
    },
    async close() {},
  };
}

/**
 * Writes one batch after the other, and syncs now and then: what piled up until the end would hold
 * up the commits of a service on the same disk for as long as it takes to write.
 */
function createLines(
  write: (text: string) => Promise<void>,
  sync: () => Promise<void>,
): Target["write"] {
  let last: Promise<void> = Promise.resolve();
  let unsynced = 0;
  return (investors, tally) => {
    last = last.then(async () => {
      const text = investors.map((investor) => `${toJson(investor)}\n`).join("");
      await write(text);
      unsynced += text.length;
      if (unsynced >= maxUnsynced) {
        await sync();
        unsynced = 0;
      }
      tally.copied += investors.length;
    });
    return last;
  };
}
