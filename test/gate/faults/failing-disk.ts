/** A disk that fails on demand (failing-disk.c), and what a power cut may leave of it. */
import { execFileSync } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { dirname, join, resolve } from "node:path";
import { beforeAll, expect } from "vitest";
import { copy, tableAlone, tableOf } from "../../support/copying.ts";
import { sharedFolder, temporaryFolder } from "../../support/folder.ts";
import type { Random } from "../../support/random.ts";

const pageSize = 4_096;

/** The contents of a folder by name. */
export type Files = Map<string, Buffer>;

/** The disk under the folder `data` of a new folder. */
export type FailingDisk = ReturnType<typeof createFailingDisk>;

/** Compiles failing-disk.c for the tests of a group; returns what makes a disk for one of them. */
export function prepareDisks(): () => FailingDisk {
  const library = join(sharedFolder(), "failing-disk.so");
  const source = resolve(import.meta.dirname, "failing-disk.c");
  beforeAll(() => {
    execFileSync("cc", ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-o", library, source]);
  });
  return () => createFailingDisk(library);
}

function createFailingDisk(library: string) {
  const folder = realpathSync(temporaryFolder());
  const data = join(folder, "data");
  const durable = join(folder, "durable");
  const rules = join(folder, "rules");
  for (const each of [data, durable]) mkdirSync(each);
  const env = {
    LD_PRELOAD: library,
    NODE_COMPILE_CACHE: join(dirname(library), "cache"),
    DISK_FOLDER: data,
    DISK_RULES: rules,
  };

  return {
    folder,
    data,
    /** The environment of a process whose files in the folder `data` are on the disk. */
    env,
    /** The same, which takes more time, if the power is to be cut. */
    durableEnv: { ...env, DISK_DURABLE: durable },

    /** Makes the disk fail by other rules from now on. */
    setRules(text: string): void {
      writeFileSync(`${rules}.new`, text);
      renameSync(`${rules}.new`, rules);
    },

    /**
     * What a power cut now may leave, when no process uses the files any more. Pages that are not
     * synced may be on the disk or not, as may the size and the name of a file.
     */
    afterPowerCut(random: Random): Files {
      // How many hundredths of what is not synced the disk has.
      const share = random.pick([0, 5, 50, 95, 100]);
      const isOnDisk = () => random.int(1, 100) <= share;
      const [cached, synced] = [readFiles(data), readFiles(durable)];
      const names = [...new Set([...cached.keys(), ...synced.keys()])];
      const isLeft = (name: string) => (isOnDisk() ? cached : synced).has(name);
      return new Map(
        names.filter(isLeft).map((name) => {
          const before = synced.get(name) ?? Buffer.alloc(0);
          const after = cached.get(name) ?? before;
          const content = Buffer.alloc((isOnDisk() ? after : before).length);
          for (let at = 0; at < content.length; at += pageSize) {
            // Until its smaller size is on the disk, a file that was cut short keeps what is behind.
            const version = at < after.length && isOnDisk() ? after : before;
            version.subarray(at, at + pageSize).copy(content, at);
          }
          return [name, content];
        }),
      );
    },

    /** Puts back what a power cut has left. */
    restore(files: Files): void {
      for (const each of [data, durable]) {
        rmSync(each, { recursive: true });
        mkdirSync(each);
        for (const [name, content] of files) writeFileSync(join(each, name), content);
      }
    },
  };
}

/**
 * Copies an SQLite file while a rule has the disk fail, and looks whether what is said is true: the copy
 * is there and whole, or a repeat makes it.
 *
 * @param to a path that ends in .db or .ndjson
 * @returns what the first copy said
 */
export async function copyDuring(rule: string, disk: FailingDisk, from: string, to: string) {
  const { folder, env, setRules } = disk;
  const isSqlite = to.endsWith(".db");
  const args = [`sqlite:${from}`, isSqlite ? `sqlite:${to}` : to];
  setRules(rule);
  const first = await copy(args, { folder, env });
  setRules("");
  const isMade = first.code === 0 || first.told.includes(`${to} is there`);
  const what = `${rule}\n${first.told}`;
  if (!isSqlite) expect(existsSync(join(folder, to)), what).toBe(isMade);
  if (!isMade) expect(await copy(args, { folder, env }), what).toMatchObject({ code: 0 });
  const whole = tableOf(folder, from);
  if (isSqlite) expect(tableAlone(folder, to), what).toEqual(whole);
  else expect(readFileSync(join(folder, to), "utf8").match(/\n/g), what).toHaveLength(whole.rows);
  return first;
}

/** The files in a folder, without those that SQLite makes anew after a crash. */
export function readFiles(folder: string): Files {
  const names = readdirSync(folder).filter((name) => !/-shm$|\.lost$/.test(name));
  return new Map(names.map((name) => [name, readFileSync(join(folder, name))]));
}
