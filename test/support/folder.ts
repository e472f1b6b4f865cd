import { execFileSync } from "node:child_process";
import { copyFileSync, mkdirSync, mkdtempSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { v4 } from "uuid";
import { afterAll, beforeAll, expect, onTestFinished } from "vitest";

/** A folder of the running test's own, removed after it. */
export function temporaryFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), "investor-records-"));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

/** A folder that the tests of a file or a group share, removed after the last of them. */
export function sharedFolder(): string {
  const folder = join(tmpdir(), `investor-records-${v4()}`);
  // Where all of them are skipped, nothing would remove it.
  beforeAll(() => mkdirSync(folder, { mode: 0o700 }));
  afterAll(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

/** A file of the running test's own, by its path. */
export function temporaryFile(text: string): string {
  const path = join(temporaryFolder(), "file");
  writeFileSync(path, text, { mode: 0o600 });
  return path;
}

/** A file system in memory, until the end of a test that needs `mount`. */
export function temporaryDisk(folder: string, bytes = 2 * 1024 ** 2): string {
  mkdirSync(folder);
  const options = ["-t", "tmpfs", "-o", `size=${bytes},nr_inodes=0`, "tmpfs", folder];
  execFileSync("mount", options, { stdio: "ignore" });
  onTestFinished(() => void execFileSync("umount", ["-l", folder]));
  return folder;
}

/**
 * Has something tried on small disks, the first of which have too little room: it must fail on those, and
 * then on no other.
 *
 * @param room how many bytes the smallest has, and how many more each of the next ones, up to the last
 * @param attempt returns a status
 */
export async function tryOnSmallDisks(
  folder: string,
  room: { from: number; step: number; to: number },
  attempt: (disk: string) => number | null | Promise<number | null>,
): Promise<void> {
  const statuses = new Set<unknown>();
  for (let bytes = room.from; bytes <= room.to; bytes += room.step)
    statuses.add(await attempt(temporaryDisk(join(folder, v4()), Math.ceil(bytes))));
  expect([...statuses]).toEqual([1, 0]);
}

/** Makes a file system for {@link mountImage} in a new file. */
export function makeImage(folder: string): string {
  const image = join(folder, "image");
  writeFileSync(image, "");
  truncateSync(image, 16 * 1024 ** 2);
  execFileSync("mkfs.ext4", ["-q", image]);
  return image;
}

/**
 * Mounts a file system until it is disposed of, in a test that needs `loop`.
 *
 * @returns where it is mounted, and what mounts beside it what a power cut now would leave of it
 */
export function mountImage(image: string) {
  const mounted: string[] = [];

  function mount(file: string): string {
    const disk = `${file}.mounted`;
    mkdirSync(disk);
    // Otherwise, it would write each five seconds what is not synced.
    execFileSync("mount", ["-o", "loop,commit=300", file, disk], { stdio: "ignore" });
    mounted.push(disk);
    return disk;
  }

  return {
    disk: mount(image),
    cutPower(): string {
      copyFileSync(image, `${image}.cut`);
      return mount(`${image}.cut`);
    },
    [Symbol.dispose]: () => void execFileSync("umount", mounted),
  };
}
