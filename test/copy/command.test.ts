import { execFileSync, spawnSync } from "node:child_process";
import {
  chmodSync,
  existsSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { v7 } from "uuid";
import { describe, expect, it, onTestFinished } from "vitest";
import { ConfigError } from "../../src/config.ts";
import { compileRecorder } from "../faults/recorded-service.ts";
import { temporaryDisk, temporaryFolder } from "../support/folder.ts";
import { anInvestor } from "../support/records.ts";
import { waitFor } from "../support/service.ts";
import { hasTool } from "../support/tools.ts";
import { copy, copyHere, lineOf, makeSqlite, openSqlite, startCopy, tableOf } from "./copying.ts";

const bin = join(import.meta.dirname, "../../src/bin.ts");

const copied = (count: number | string, present: number | string) =>
  new RegExp(
    `^copied ${count} records?, and found ${present} already there, in [\\d.]+ s \\(.* a second\\)\\n$`,
  );

/** Runs a line of a shell in a folder, where `copy` is the command. */
function inShell(folder: string, line: string) {
  const script = `copy() { "${process.execPath}" "${bin}" copy "$@"; }; ${line}`;
  return spawnSync("sh", ["-c", script], { cwd: folder, encoding: "utf8", timeout: 60_000 });
}

describe("the arguments of a copy", () => {
  it.each([
    [["sqlite:a.db"], "missing required argument"],
    [["sqlite:a.db", "sqlite:b.db", "sqlite:c.db"], "too many arguments"],
    [["sqlite:a.db", "postgres://me:s3cret@host/db"], "TO must be sqlite:PATH"],
    [["sqlite:a.db", "x.ndjson", "--fast"], "--fast"],
    [["mongodb://me:s3cret@h/?no=1", "x.ndjson"], "cannot read mongodb://h/: not a MongoDB"],
  ])("are refused with one line and status 2: %j", async (args, named) => {
    const folder = temporaryFolder();
    const { code, told, written } = await copy(args, { folder });
    expect(told).toMatch(/^error: [^\n]+\n$/);
    expect(told).toContain(named);
    expect(told).not.toContain("s3cret");
    expect({ code, written, left: readdirSync(folder) }).toEqual({
      code: 2,
      written: "",
      left: [],
    });
  });

  it.each([
    ["a.db", "sqlite:b.db", "FROM must be sqlite:PATH"],
    ["sqlite:a.db", "file:///tmp/x.ndjson", "TO must be sqlite:PATH"],
    ["sqlite:a.db", "x.json", "TO must be sqlite:PATH"],
    ["sqlite://a.db", "x.ndjson", "FROM must be sqlite:PATH"],
    ["mongodb://", "x.ndjson", "FROM must be sqlite:PATH"],
    ["", "x.ndjson", "FROM must be sqlite:PATH"],
    ["env:", "x.ndjson", "FROM must be sqlite:PATH"],
    ["env:mongodb://me:my s3cret@host", "x.ndjson", "FROM must be sqlite:PATH"],
    ["env:NOWHERE", "x.ndjson", "FROM: the environment variable NOWHERE is not set"],
    [
      "sqlite:a.db",
      "env:NO_URL",
      "TO: the environment variable NO_URL does not hold a database URL",
    ],
  ])("name what can be copied: not %j and %j", async (from, to, named) => {
    const folder = temporaryFolder();
    const refused = copyHere([from, to], { folder, env: { NO_URL: "my s3cret" } });
    await expect(refused).rejects.toThrow(ConfigError);
    await expect(refused).rejects.toThrow(named);
    await expect(refused).rejects.not.toThrow("s3cret");
    expect(readdirSync(folder)).toEqual([]);
  });

  it("name a database by the environment, where others do not see it", async () => {
    const folder = temporaryFolder();
    await makeSqlite(folder, "a.db", 3);
    const env = { OLD: "sqlite:a.db", NEW: `sqlite://${folder}/b.db` };
    expect(await copyHere(["env:OLD", "env:NEW"], { folder, env })).toMatchObject({
      code: 0,
      told: expect.stringMatching(copied(3, 0)),
    });
    expect(tableOf(folder, "b.db")).toEqual(tableOf(folder, "a.db"));
  });
});

describe("a source", () => {
  it.each([
    ["sqlite:gone.db", "it is not there"],
    ["sqlite:no/folder/gone.db", "it is not there"],
    ["sqlite:folder", "it is not a file"],
    ["sqlite:other.db", "it is damaged, or not an SQLite file"],
    ["sqlite:empty.db", "it is empty"],
    ["sqlite:hard.db", "hard links"],
    ["gone.ndjson", "no such file"],
    ["folder.ndjson", "it is not a file"],
    ["empty.ndjson", "it holds no records"],
  ])("that cannot be used is refused and not made: %s", async (from, named) => {
    const folder = temporaryFolder();
    mkdirSync(join(folder, "folder"));
    mkdirSync(join(folder, "folder.ndjson"));
    writeFileSync(join(folder, "other.db"), "x".repeat(10_000));
    writeFileSync(join(folder, "empty.db"), "");
    writeFileSync(join(folder, "empty.ndjson"), "");
    await makeSqlite(folder, "one.db", 1);
    linkSync(join(folder, "one.db"), join(folder, "hard.db"));
    const before = readdirSync(folder);
    const { code, told } = await copyHere([from, "x.ndjson"], { folder });
    expect(told).toMatch(/^error: cannot read [^\n]+\n$/);
    expect(told).toContain(named);
    expect(code).toBe(1);
    expect(readdirSync(folder).filter((name) => !/-(wal|shm)$/.test(name))).toEqual(before);
  });

  it("that holds no records is nothing to go on with", async () => {
    const folder = temporaryFolder();
    writeFileSync(join(folder, "empty.ndjson"), "");
    const { told } = await copyHere(["empty.ndjson", "sqlite:b.db"], { folder });
    expect(told).toBe(
      "error: cannot read empty.ndjson: it holds no records; copied 0 records, and found 0 already there\n",
    );
  });

  it("in SQLite is read as it is: neither changed, checkpointed nor given another mode", async () => {
    const folder = temporaryFolder();
    await makeSqlite(folder, "a.db", 50);
    // A service holds it open, with records in its log.
    const store = await openSqlite(join(folder, "a.db"));
    await store.insert(anInvestor());
    chmodSync(join(folder, "a.db"), 0o640);
    const look = () =>
      ["a.db", "a.db-wal"].map((name) => {
        const { ino, mode, size, mtimeNs } = statSync(join(folder, name), { bigint: true });
        return { name, ino, mode, size, mtimeNs };
      });
    const before = look();
    const { code } = await copyHere(["sqlite:a.db", "a.ndjson"], { folder });
    expect(code).toBe(0);
    expect(look()).toEqual(before);
    expect(readFileSync(join(folder, "a.ndjson"), "utf8").trim().split("\n")).toHaveLength(51);
    await store.close();
  });

  it("in a folder that may not be written to is refused, and says why", async () => {
    const folder = temporaryFolder();
    const disk = temporaryDisk(join(folder, "disk"));
    if (disk === undefined) return;
    await makeSqlite(folder, "disk/a.db", 1);
    execFileSync("mount", ["-o", "remount,ro", disk]);
    expect(await copyHere(["sqlite:disk/a.db", "x.ndjson"], { folder })).toEqual({
      code: 1,
      told: "error: cannot read sqlite:disk/a.db: SQLite needs the right to make its -wal and -shm beside it\n",
    });
  });

  it("that is damaged after its first page is told in plain words, and closed", async () => {
    const folder = temporaryFolder();
    await makeSqlite(folder, "a.db", 1_000);
    const path = join(folder, "a.db");
    const bytes = readFileSync(path);
    writeFileSync(path, bytes.fill(0xff, 4_096));
    expect(await copyHere(["sqlite:a.db", "x.ndjson"], { folder })).toEqual({
      code: 1,
      told: "error: cannot read sqlite:a.db: it is damaged, or not an SQLite file\n",
    });
    // Only the last connection may leave this mode.
    const db = new DatabaseSync(path);
    expect(db.prepare("PRAGMA journal_mode = DELETE").get()).toEqual({ journal_mode: "delete" });
    db.close();
  });
});

describe("a file to copy to", () => {
  it("is for its owner alone, and whole when it is there", async () => {
    const folder = temporaryFolder();
    const investors = await makeSqlite(folder, "a.db", 2_500);
    const { code, told } = await copyHere(["sqlite:a.db", "out.ndjson"], { folder });
    expect({ code, told }).toEqual({
      code: 0,
      told: expect.stringMatching(/^copied 2,500 records/),
    });
    const lines = readFileSync(join(folder, "out.ndjson"), "utf8").split("\n");
    expect(lines.pop()).toBe("");
    expect(lines.map((line) => JSON.parse(line).id)).toEqual(investors.map(({ id }) => id));
    expect(JSON.parse(lines[0] ?? "")).toEqual({
      ...JSON.parse(lineOf()),
      ...{ id: investors[0]?.id, firstName: investors[0]?.firstName },
    });
    expect(statSync(join(folder, "out.ndjson")).mode & 0o777).toBe(0o600);
    expect(existsSync(join(folder, "out.ndjson.partial"))).toBe(false);
  });

  it("is refused if it is there, also as a link to nothing", async () => {
    const folder = temporaryFolder();
    await makeSqlite(folder, "a.db", 2);
    writeFileSync(join(folder, "out.ndjson"), "mine");
    symlinkSync("nothing", join(folder, "link.ndjson"));
    for (const name of ["out.ndjson", "link.ndjson"]) {
      const { code, told } = await copyHere(["sqlite:a.db", name], { folder });
      expect({ code, told }).toEqual({
        code: 1,
        told: `error: cannot write to ${name}: it is there already: move it away, or name another\n`,
      });
    }
    expect(readFileSync(join(folder, "out.ndjson"), "utf8")).toBe("mine");
  });

  it("is made anew over what a killed copy has left", async () => {
    const folder = temporaryFolder();
    await makeSqlite(folder, "a.db", 2);
    writeFileSync(join(folder, "out.ndjson.partial"), "x".repeat(100_000));
    expect((await copyHere(["sqlite:a.db", "out.ndjson"], { folder })).code).toBe(0);
    expect(readFileSync(join(folder, "out.ndjson"), "utf8").split("\n")).toHaveLength(3);
    expect(readdirSync(folder)).not.toContain("out.ndjson.partial");
  });

  it("is whole if a second copy begins while the first one writes", async () => {
    const folder = temporaryFolder();
    const partial = join(folder, "out.ndjson.partial");
    const start = async (lastName: string) => {
      const running = startCopy(["-", "out.ndjson"], { folder });
      running.child.stdin?.write(`${lineOf({ lastName })}\n`);
      await waitFor(
        async () => sizeOf(partial) > 0 && readFileSync(partial, "utf8").includes(lastName),
      );
      return running;
    };
    const first = await start("One");
    const second = await start("Two");
    first.child.stdin?.end();
    expect(await first.exited).toBe(1);
    expect(first.output()).toContain("another copy writes to it");
    second.child.stdin?.end();
    expect(await second.exited).toBe(0);
    expect(readFileSync(join(folder, "out.ndjson"), "utf8")).toMatch(/^[^\n]*Two[^\n]*\n$/);
    expect(readdirSync(folder)).toEqual(["out.ndjson"]);
  });

  it("is removed again if its disk is full", async ({ skip }) => {
    const folder = temporaryFolder();
    const disk = temporaryDisk(join(folder, "disk"));
    skip(disk === undefined, "this test needs the right to mount a small file system");
    await makeSqlite(folder, "a.db", 10_000);
    const { code, told } = await copyHere(["sqlite:a.db", "disk/out.ndjson"], { folder });
    expect(told).toMatch(/^error: cannot write to disk\/out.ndjson: ENOSPC[^\n]*was not made\n$/);
    expect(code).toBe(1);
    expect(readdirSync(join(folder, "disk"))).toEqual([]);
  });

  it.runIf(hasTool("cc", ["--version"])).each([
    // The first sync is a trial, before anything is written.
    ["the sync of its folder", "sync . 2 1 EIO", 2, "fsync"],
    ["a sync on the way", "sync .partial 1 1 EIO", 20_000, "fdatasync"],
  ])("is removed again if %s fails", async (_, rule, records, call) => {
    const folder = realpathSync(temporaryFolder());
    const library = compileRecorder();
    onTestFinished(() => rmSync(dirname(library), { recursive: true }));
    await makeSqlite(folder, "a.db", records);
    mkdirSync(join(folder, "out"));
    writeFileSync(join(folder, "rules"), rule);
    const env = {
      LD_PRELOAD: library,
      DISK_FOLDER: join(folder, "out"),
      DISK_LOG: join(folder, "log"),
      DISK_RULES: join(folder, "rules"),
    };
    expect(await copy(["sqlite:a.db", "out/out.ndjson"], { folder, env })).toMatchObject({
      code: 1,
      told: `error: cannot write to out/out.ndjson: EIO: i/o error, ${call}; out/out.ndjson was not made\n`,
    });
    expect(readdirSync(join(folder, "out"))).toEqual([]);
  });

  it("that cannot be looked for any more is told in one line", async () => {
    const folder = temporaryFolder();
    const out = join(folder, "out");
    mkdirSync(out);
    const { child, exited, output } = startCopy(["-", "out/out.ndjson"], { folder });
    await waitFor(async () => existsSync(join(out, "out.ndjson.partial")));
    renameSync(out, join(folder, "moved"));
    symlinkSync("out", out);
    child.stdin?.end(`${lineOf()}\n`);
    expect(await exited).toBe(1);
    expect(output()).toMatch(/^error: cannot write to out\/out.ndjson: ELOOP[^\n]*was not made\n$/);
  });

  it("that is standard output and full is no success", async ({ skip }) => {
    const folder = temporaryFolder();
    const disk = temporaryDisk(join(folder, "disk"));
    skip(disk === undefined, "this test needs the right to mount a small file system");
    await makeSqlite(folder, "a.db", 10_000);
    const { status, stderr } = inShell(folder, "copy sqlite:a.db - > disk/out.ndjson");
    expect(stderr).toContain("ENOSPC");
    expect(status).toBe(1);
  });

  it.each([
    ["what it reads grows by it", "copy a.ndjson - >> a.ndjson"],
    ["it reads what an earlier export left", "copy - out.ndjson < out.ndjson.partial"],
  ])("is refused and left as it is if %s", (_, command) => {
    const folder = temporaryFolder();
    const line = `${lineOf({ requestId: v7() })}\n`;
    for (const name of ["a.ndjson", "out.ndjson.partial"]) writeFileSync(join(folder, name), line);
    expect(inShell(folder, command).status).toBe(2);
    expect(readdirSync(folder).sort()).toEqual(["a.ndjson", "out.ndjson.partial"]);
    expect(readFileSync(join(folder, "a.ndjson"), "utf8")).toBe(line);
  });

  it("is removed again at SIGINT", async () => {
    const folder = temporaryFolder();
    const { child, exited, output } = startCopy(["-", "out.ndjson"], { folder });
    child.stdin?.write(`${lineOf()}\n`);
    await waitFor(async () => sizeOf(join(folder, "out.ndjson.partial")) > 0);
    child.kill("SIGINT");
    expect(await exited).toBe(130);
    expect(output()).toBe("stopped by SIGINT; out.ndjson was not made\n");
    expect(readdirSync(folder)).toEqual([]);
  });
});

describe("standard output", () => {
  it("gets the records alone", async () => {
    const folder = temporaryFolder();
    const investors = await makeSqlite(folder, "a.db", 1_500);
    const { code, told, written } = await copy(["sqlite:a.db", "-"], { folder });
    expect({ code, told }).toEqual({ code: 0, told: expect.stringMatching(copied("1,500", 0)) });
    const ids = written.trim().split("\n");
    expect(ids.map((line) => JSON.parse(line).id)).toEqual(investors.map(({ id }) => id));
  });

  it("that is closed ends the copy with status 1 and one line", async () => {
    const folder = temporaryFolder();
    await makeSqlite(folder, "a.db", 20_000);
    const { child, exited } = startCopy(["sqlite:a.db", "-"], { folder });
    let told = "";
    child.stderr?.on("data", (text) => {
      told += text;
    });
    child.stdout?.once("data", () => child.stdout?.destroy());
    expect(await exited).toBe(1);
    expect(told).toMatch(/^error: cannot write to standard output: write EPIPE[^\n]*\n$/);
  });
});

describe("a store to copy to", () => {
  it("keeps what it has, and counts what is there already", async () => {
    const folder = temporaryFolder();
    const [first] = await makeSqlite(folder, "a.db", 1_200);
    expect((await copyHere(["sqlite:a.db", "sqlite:new/b.db"], { folder })).code).toBe(0);
    const store = await openSqlite(join(folder, "a.db"));
    await store.insert(anInvestor());
    await store.close();
    expect(await copyHere(["sqlite:a.db", "sqlite:new/b.db"], { folder })).toMatchObject({
      code: 0,
      told: expect.stringMatching(copied(1, "1,200")),
    });
    expect(tableOf(folder, "new/b.db")).toEqual(tableOf(folder, "a.db"));
    expect(statSync(join(folder, "new/b.db")).mode & 0o777).toBe(0o600);
    expect(first).toBeDefined();
  });

  it("tells the first ten conflicts, overwrites none, and gets all others", async () => {
    const folder = temporaryFolder();
    const investors = await makeSqlite(folder, "a.db", 30);
    const store = await openSqlite(join(folder, "b.db"));
    const others = investors.slice(0, 12).map(({ id }) => anInvestor({ id }));
    for (const other of others) await store.insert(other);
    const { code, told } = await copyHere(["sqlite:a.db", "sqlite:b.db"], { folder });
    const ids = investors.slice(0, 10).map(({ id }) => id);
    expect({ code, told }).toEqual({
      code: 1,
      told: `error: conflicts with other content under the same ids, which stays: 12 (${ids.join(", ")} and 2 more); copied 18 records, and found 0 already there\n`,
    });
    expect(await store.list({ limit: 100 })).toEqual([...others, ...investors.slice(12)]);
    await store.close();
  });

  it.each([
    ["sqlite:other.db", "it is damaged, or not an SQLite file"],
    ["sqlite:folder", "it is not a file"],
    ["sqlite:locked/new/b.db", /permission denied|read-only/],
    ["sqlite:locked/b.db", /permission denied|read-only/],
    ["locked/out.ndjson", /permission denied|read-only/],
    ["gone/out.ndjson", "no such file"],
  ])("that cannot be used is told in one line: %s", async (to, named) => {
    const folder = temporaryFolder();
    mkdirSync(join(folder, "folder"));
    mkdirSync(join(folder, "locked"));
    lock(join(folder, "locked"));
    await makeSqlite(folder, "a.db", 1);
    writeFileSync(join(folder, "other.db"), "x".repeat(10_000));
    const { code, told } = await copyHere(["sqlite:a.db", to], { folder });
    expect(told).toMatch(/^error: cannot write to [^\n]+\n$/);
    expect(told).toMatch(named);
    expect(code).toBe(1);
  });

  it.each([
    ["the last one", 2_000],
    ["followed by more", 2_500],
  ])("tells the first failure, once the next batch, %s, has ended too", async (_, records) => {
    const folder = temporaryFolder();
    const investors = await makeSqlite(folder, "a.db", records);
    const store = await openSqlite(join(folder, "b.db"));
    await store.close();
    const db = new DatabaseSync(join(folder, "b.db"));
    for (const [name, index] of Object.entries({ first: 0, second: 1_500 })) {
      const id = investors[index]?.id.replaceAll("-", "");
      db.exec(
        `CREATE TRIGGER ${name} BEFORE INSERT ON investors WHEN NEW.id = x'${id}'
         BEGIN SELECT RAISE(ABORT, '${name}'); END`,
      );
    }
    db.close();
    expect(await copyHere(["sqlite:a.db", "sqlite:b.db"], { folder })).toEqual({
      code: 1,
      told: "error: cannot write to sqlite:b.db: first; copied 1,998 records, and found 0 already there; the same command goes on from there\n",
    });
    expect(tableOf(folder, "b.db").rows).toBe(1_998);
  });

  it("on a disk that is full can be gone on with once there is room", async ({ skip }) => {
    const folder = temporaryFolder();
    const disk = temporaryDisk(join(folder, "disk"));
    skip(disk === undefined, "this test needs the right to mount a small file system");
    if (disk === undefined) return;
    await makeSqlite(folder, "a.db", 4_000);
    writeFileSync(join(disk, "ballast"), Buffer.alloc(1536 * 1024));
    const { code, told } = await copyHere(["sqlite:a.db", "sqlite:disk/b.db"], { folder });
    expect(told).toMatch(/^error: cannot write to sqlite:disk\/b.db: [^\n]*full[^\n]*\n$/);
    expect(code).toBe(1);
    rmSync(join(disk, "ballast"));
    expect((await copyHere(["sqlite:a.db", "sqlite:disk/b.db"], { folder })).code).toBe(0);
    expect(tableOf(folder, "disk/b.db")).toEqual(tableOf(folder, "a.db"));
  });

  it.each([
    ["SIGINT", 130],
    ["SIGTERM", 143],
    ["SIGHUP", 129],
  ] as const)("can be gone on with after %s, with status %i", async (signal, status) => {
    const folder = temporaryFolder();
    const { child, exited, output } = startCopy(["-", "sqlite:b.db"], { folder });
    const lines = [lineOf(), lineOf()];
    child.stdin?.write(`${lines[0]}\n`);
    await waitFor(async () => rowsOf(folder, "b.db") === 1);
    child.kill(signal);
    expect(await exited).toBe(status);
    expect(output()).toBe(
      `stopped by ${signal}; copied 1 record, and found 0 already there; the same command goes on from there\n`,
    );
    const again = await copy(["-", "sqlite:b.db"], { folder, input: lines.join("\n") });
    expect(again).toMatchObject({ code: 0, told: expect.stringMatching(copied(1, 1)) });
  });

  it("may be copied to by two at once", async () => {
    const folder = temporaryFolder();
    await makeSqlite(folder, "a.db", 3_000);
    const both = await Promise.all(
      [1, 2].map(() => copy(["sqlite:a.db", "sqlite:b.db"], { folder })),
    );
    expect(both.map(({ code }) => code)).toEqual([0, 0]);
    expect(tableOf(folder, "b.db")).toEqual(tableOf(folder, "a.db"));
  });
});

describe("a copy that takes long", () => {
  it.runIf(hasTool("script", ["--version"]))("shows a bar on a terminal", async () => {
    const folder = temporaryFolder();
    await makeSqlite(folder, "a.db", 2_000);
    const command = `${process.execPath} ${bin} copy sqlite:a.db a.ndjson`;
    const shown = execFileSync("script", ["-qec", command, "/dev/null"], { cwd: folder });
    const [bar, end] = shown.toString().split("copied ");
    expect(bar).toMatch(/0 % \| 0 records \| .* a second \| time left: /);
    expect(end).toMatch(/^2,000 records, and found 0 already there/);
  });

  it("says at intervals how far it is", async () => {
    const folder = temporaryFolder();
    const { child, exited, output } = startCopy(["-", "sqlite:b.db"], { folder });
    child.stdin?.write(`${lineOf()}\n`);
    await waitFor(async () => / a second, time left: unknown\n/.test(output()));
    child.stdin?.end();
    expect(await exited).toBe(0);
    expect(output().split("\n")[0]).toMatch(/^[01] records, [\d.]+ a second, time left: unknown$/);
  });
});

/** Takes the right to write to a folder away, which for root takes more than its mode. */
function lock(folder: string): void {
  chmodSync(folder, 0o500);
  if (process.getuid?.() !== 0) return;
  execFileSync("mount", ["-t", "tmpfs", "-o", "ro", "tmpfs", folder]);
  onTestFinished(() => void execFileSync("umount", ["-l", folder]));
}

function rowsOf(folder: string, name: string): number {
  try {
    return tableOf(folder, name).rows;
  } catch {
    // It is being made.
    return 0;
  }
}

function sizeOf(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.size ?? 0;
}
