/** Processes that use the file of a disk (actor.ts). */
import { join } from "node:path";
import { createRandom } from "../../support/random.ts";
import { type Run, run } from "../../support/service.ts";
import type { FailingDisk } from "./failing-disk.ts";

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
