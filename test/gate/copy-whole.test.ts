import { once } from "node:events";
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { copy, copyHere, lineOf, makeSqlite, rowsOf, startCopy } from "../support/copying.ts";
import { temporaryFolder } from "../support/folder.ts";
import { createRandom, type Random, seedOf } from "../support/random.ts";
import { needs } from "../support/tools.ts";
import { copyDuring, prepareDisks } from "./faults/failing-disk.ts";

const pageSize = 4_096;

describe("whatever a copy says is true if system calls fail", needs("cc"), () => {
  const createDisk = prepareDisks();

  it.each(["data/b.db", "data/b.ndjson"])("into %s", async (to) => {
    const disk = createDisk();
    await makeSqlite(disk.folder, "a.db", 300);
    const random = createRandom(seedOf("failing system calls"));
    const files = to.endsWith(".db") ? ["b.db", "-wal"] : [".partial"];
    const operations = files.flatMap((name) => [`write ${name}`, `sync ${name}`]);
    for (const operation of [...operations, "sync ."]) {
      const step = () => (operation.startsWith("write") ? random.int(1, 8) : 1);
      const told: string[] = [];
      for (let first = 1; told.at(-1)?.includes("the disk fails") ?? true; first += step()) {
        disk.restore(new Map());
        const rule = `${operation} ${first} ${random.pick(["EIO", "ENOSPC"])}`;
        told.push((await copyDuring(rule, disk, "a.db", to)).told);
      }
      expect(told.length, operation).toBeGreaterThan(1);
    }
  });
});

/** Spoils a page of a file, or that and another, as a disk may. */
type Damage = (file: Buffer, page: number, other: number, random: Random) => void;

/** Overwrites a few bytes among the first of a page by any. */
function scatter(length: number, most: number): Damage {
  return (file, page, _, random) => {
    for (let i = random.int(1, most); i > 0; i -= 1)
      file.writeUInt8(random.int(0, 255), page + random.int(0, length - 1));
  };
}

const damages: Record<string, Damage> = {
  bytes: scatter(pageSize, 3),
  head: scatter(12, 4),
  block: scatter(512, 512),
  "a flipped bit": (file, page, _, random) => {
    const at = page + random.int(0, pageSize - 1);
    file.writeUInt8(file.readUInt8(at) ^ (1 << random.int(0, 7)), at);
  },
  "missing cells": (file, page, _, random) => {
    const cells = file.readUInt16BE(page + 3);
    file.writeUInt16BE(Math.max(0, cells - random.int(1, 3)), page + 3);
  },
  "a page over another": (file, page, other) => file.copy(file, page, other, other + pageSize),
  "swapped pages": (file, page, other) => {
    const kept = Buffer.from(file.subarray(page, page + pageSize));
    file.copy(file, page, other, other + pageSize);
    kept.copy(file, other);
  },
};

it("a copy that ends with 0 has as many records as its source, which is damaged anywhere", async () => {
  const random = createRandom(seedOf("damaged sources"));
  const folder = temporaryFolder();
  await makeSqlite(folder, "a.db", 1_000);
  const file = readFileSync(join(folder, "a.db"));
  const pages = file.length / pageSize;
  for (let round = 0; round < 210; round += 1) {
    const damaged = Buffer.from(file);
    const [way, damage] = random.pick(Object.entries(damages));
    const aPage = () => random.int(1, pages - 1) * pageSize;
    const page = aPage();
    damage(damaged, page, aPage(), random);
    writeFileSync(join(folder, "damaged.db"), damaged);
    const { code, told } = await copyHere(["sqlite:damaged.db", "sqlite:b.db"], { folder });
    if (code === 0) expect(told, `${way} at ${page}`).toContain("copied 1,000 records");
    if (code === 0) expect(rowsOf(folder, "b.db"), `${way} at ${page}`).toBe(1_000);
    for (const name of ["b.db", "b.db-wal", "b.db-shm"])
      rmSync(join(folder, name), { force: true });
  }
});

describe("a file of NDJSON that holds no records", () => {
  it("takes constant memory, if it is empty lines", async () => {
    const folder = temporaryFolder();
    writeFileSync(join(folder, "a.ndjson"), `${"\n".repeat(6 * 1024 ** 2)}${lineOf()}`);
    const env = { NODE_OPTIONS: "--max-old-space-size=48" };
    expect(await copy(["a.ndjson", "b.ndjson"], { folder, env })).toMatchObject({ code: 0 });
  });

  it("takes constant memory, if it is one endless line", async () => {
    const folder = temporaryFolder();
    const { child, exited, output } = startCopy(["-", "b.ndjson"], { folder });
    const { stdin } = child;
    const chunk = Buffer.alloc(1024 ** 2, "x");
    for (let i = 0; i < 320; i += 1) if (!stdin?.write(chunk)) await once(stdin ?? child, "drain");
    const status = readFileSync(`/proc/${child.pid}/status`, "utf8");
    stdin?.end(`\n${lineOf()}`);
    expect(await exited).toBe(1);
    expect(output()).toMatch(
      /error: line 1: is longer than 65536 bytes\n(.*\n)*error: left out 1 record; copied 1 record, /,
    );
    // Node.js alone takes some 70 MB.
    expect(Number(/VmHWM:\s+(\d+) kB/.exec(status)?.[1])).toBeLessThan(300_000);
  });
});
