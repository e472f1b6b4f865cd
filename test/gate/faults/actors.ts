/** Processes that use the file of a disk (actor.ts), what of it they say, and backups that are put there. */
import { copyFileSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { expect } from "vitest";
import { idOf, openSqlite } from "../../support/copying.ts";
import { createRandom } from "../../support/random.ts";
import { type Run, run } from "../../support/service.ts";
import { type FailingDisk, readFiles } from "./failing-disk.ts";

/** The file that the actors on a disk use, their journal, and the copy that some of them make. */
export function pathsOn({ data, folder }: FailingDisk) {
  const path = join(data, "investors.db");
  return { path, journal: join(folder, "journal"), copy: `${path}.copy` };
}

/** Starts what uses the file of a disk in a role. */
export function startActor(disk: FailingDisk, role: string, random = createRandom(1)): Run {
  const { path, journal } = pathsOn(disk);
  const args = [role, path, journal, String(random.int(0, 2 ** 31 - 1))];
  return run(args, disk.env, disk.folder, join(import.meta.dirname, "actor.ts"));
}

/** The ids of the records that have to be in a file, and of those that may be. */
export class Known {
  certain = new Set<string>();
  possible = new Set<string>();

  /** Takes what actors have noted. */
  take(journal: string): void {
    for (const line of journal.split("\n")) {
      const id = line.slice(1);
      if (line.startsWith("+")) this.certain.add(id);
      if (line.startsWith("-")) this.certain.delete(id);
      if (/^[?-]/.test(line)) this.possible.add(id);
    }
  }

  /** What is missing, and what is there that nobody asked for. */
  problemsOf(found: Set<string>): string[] {
    const lost = [...this.certain].filter((id) => !found.has(id));
    const isUnknown = (id: string) => !this.certain.has(id) && !this.possible.has(id);
    const unknown = [...found].filter(isUnknown);
    return [...lost.map((id) => `lost: ${id}`), ...unknown.map((id) => `unknown: ${id}`)];
  }
}

/** The ids in a file, by a start and a list; or why a start refuses it, which leaves it as it is. */
export async function listIds(path: string): Promise<Set<string> | string> {
  const read = () =>
    [...readFiles(dirname(path))].map(([name, data]) => [name, data.toString("base64")]);
  const before = read();
  const store = await openSqlite(path).catch(String);
  if (typeof store === "string") {
    expect(read()).toEqual(before);
    return store;
  }
  const found = await store.list({ limit: 100_000 });
  await store.close();
  return new Set(found.map(idOf));
}

/**
 * Puts a backup in the place of a file, and leaves what is beside it, as the pages warn of. If a start
 * refuses that, moves it away as the error says.
 *
 * @returns the ids that are served then, and what was refused
 * @throws {Error} it is refused for something else, or after that
 */
export async function putBackup(from: string, path: string) {
  copyFileSync(from, path);
  let ids = await listIds(path);
  const [, refused] = /move the (WAL|journal) away/.exec(String(ids)) ?? [];
  if (refused !== undefined) {
    for (const suffix of ["-wal", "-shm", "-journal"]) rmSync(path + suffix, { force: true });
    ids = await listIds(path);
  }
  if (typeof ids === "string") throw new Error(ids);
  return { ids, refused };
}
