import { spawnSync } from "node:child_process";
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as delay } from "node:timers/promises";
import { describe, expect, inject, it } from "vitest";
import type { Investor } from "../gen/investor/v1/investor_pb.js";
import { maxTextLength } from "../src/investor/investor.ts";
import { prepareDisks } from "./gate/faults/failing-disk.ts";
import {
  copy,
  copyHere,
  idOf,
  idsIn,
  lineOf,
  makeSqlite,
  olderTable,
  openSqlite,
  rowsOf,
  runSql,
  startCopy,
  startWriters,
  tableAlone,
  tableOf,
  withoutProgress,
} from "./support/copying.ts";
import { temporaryDisk, temporaryFolder } from "./support/folder.ts";
import { anInvestor, largest } from "./support/records.ts";
import { grpcClient, startService, waitFor } from "./support/service.ts";
import { needs } from "./support/tools.ts";

/** How a copy that left nothing out ends. */
const whole = (count: number | string, present: number | string) => ({
  code: 0,
  told: expect.stringMatching(
    `^copied ${count} records?, and found ${present} already there, in [\\d.]+ s \\(.* a second\\)\n$`,
  ),
});

/** How any other ends. */
const failed = (told: unknown) => ({ code: 1, told });

const idsOf = (text: string) => (text.match(/.+/g) ?? []).map((line) => JSON.parse(line).id);

/** A folder with an SQLite file of so many records. */
async function prepare(count: number, encoding = "UTF-8") {
  const folder = temporaryFolder();
  const choice = `PRAGMA encoding = '${encoding}'; CREATE TABLE t (x); DROP TABLE t`;
  if (encoding !== "UTF-8") runSql(join(folder, "a.db"), choice);
  return { folder, investors: await makeSqlite(folder, "a.db", count) };
}

/** Runs a line of a shell in a folder, where `copy` is the command. */
function inShell(folder: string, line: string, env = process.env) {
  const script = `copy() { "${process.execPath}" "${inject("bin")}" copy "$@"; }; ${line}`;
  return spawnSync("sh", ["-c", script], { cwd: folder, env, encoding: "utf8" });
}

describe("the arguments of a copy", () => {
  it.each([
    [["sqlite:a.db"], "missing required argument"],
    [["--check", "sqlite:a.db", "b.ndjson"], "--check takes no argument 'to'"],
    [["mongodb://me:s3cret@h/?no=1", "x.ndjson"], "cannot read mongodb://h/: "],
  ])("are refused with one line and status 2: %j", async (args, named) => {
    const ended = await copy(args, { folder: temporaryFolder() });
    const told = expect.stringMatching(`^error: [^\n]*${named}[^\n]*\n$`);
    expect(ended).toEqual({ code: 2, told, written: "" });
    expect(ended.told).not.toContain("s3cret");
  });

  it.each([
    ["a.db", "x.ndjson", "FROM must be sqlite:PATH"],
    ["file:///tmp/x.ndjson", "x.ndjson", "FROM must be sqlite:PATH"],
    ["env:mongodb://me:my s3cret@host", "x.ndjson", "FROM must be sqlite:PATH"],
    ["env:NOWHERE", "x.ndjson", "FROM: the environment variable NOWHERE is not set"],
    ["env:NO_URL", "x.ndjson", "FROM: the environment variable NO_URL must be sqlite:PATH"],
    ["sqlite:a.db", "postgres://me:s3cret@host/db", "TO must be sqlite:PATH"],
  ])("name what can be copied, not %j to %j", async (from, to, named) => {
    const folder = temporaryFolder();
    const { code, told } = await copyHere([from, to], { folder, env: { NO_URL: "my s3cret" } });
    expect({ code, told }).toEqual({ code: 2, told: expect.stringContaining(named) });
    expect(told).not.toContain("s3cret");
    expect(readdirSync(folder)).toEqual([]);
  });
});

describe("a source", () => {
  it.each([
    ["sqlite:no/folder/gone.db", "x.ndjson", "it does not exist"],
    ["sqlite:folder", "x.ndjson", "it is not a file"],
    ["sqlite:empty.db", "x.ndjson", "it is empty"],
    ["gone.ndjson", "x.ndjson", "no such file"],
    ["folder.ndjson", "x.ndjson", "it is not a file"],
    ["empty.ndjson", "x.ndjson", "it holds no records"],
    ["sqlite:one.db", "sqlite:folder", "it is not a file"],
    ["sqlite:one.db", "gone/x.ndjson", "no such file"],
  ])("or target that cannot be used is refused and not made: %s to %s", async (from, to, fault) => {
    const folder = temporaryFolder();
    mkdirSync(join(folder, "folder"));
    mkdirSync(join(folder, "folder.ndjson"));
    writeFileSync(join(folder, "empty.db"), "");
    writeFileSync(join(folder, "empty.ndjson"), "");
    await makeSqlite(folder, "one.db", 1);
    const before = readdirSync(folder);
    const what = to === "x.ndjson" ? `read ${from}` : `write to ${to}`;
    const told = expect.stringMatching(`^error: cannot ${what}: [^\n]*${fault}[^\n]*\n$`);
    const ended = await copyHere([from, to], { folder });
    expect(ended).toEqual(failed(told));
    expect(ended.told).not.toContain("goes on from there");
    expect(readdirSync(folder).filter((name) => !/-(wal|shm)$/.test(name))).toEqual(before);
  });

  it("may be a file of the first release, which stays as it is", async () => {
    const folder = temporaryFolder();
    const path = join(folder, "older.db");
    runSql(
      path,
      `PRAGMA journal_mode = WAL; PRAGMA application_id = ${0x494e5245}; PRAGMA user_version = 1;
      ${olderTable};
      INSERT INTO investors VALUES (unhex('0190a0000000700080000000000000aa'), 1, 'Ada', '', 'Lovelace',
        '12 St James''s Square', '', 'London', '', 'SW1Y 4JH', 'gb', 'en')`,
    );
    const before = readFileSync(path);
    const ended = await copyHere(["sqlite:older.db", "older.ndjson"], { folder });
    expect(ended).toEqual(whole(1, 0));
    expect(readFileSync(path)).toEqual(before);
    expect(JSON.parse(readFileSync(join(folder, "older.ndjson"), "utf8"))).toMatchObject({
      id: "0190a000-0000-7000-8000-0000000000aa",
      type: "individual",
      lastName: "Lovelace",
      language: "en",
    });
  });

  it("in SQLite is read as it is: neither changed, checkpointed nor given another mode", async () => {
    const { folder } = await prepare(50);
    // A service holds it open, with records in its WAL.
    const store = await openSqlite(join(folder, "a.db"));
    await store.insert(anInvestor());
    chmodSync(join(folder, "a.db"), 0o640);
    const look = () =>
      ["a.db", "a.db-wal"].map((name) => {
        const { ino, mode, size, mtimeNs } = statSync(join(folder, name), { bigint: true });
        return { name, ino, mode, size, mtimeNs };
      });
    const before = look();
    expect(await copyHere(["sqlite:a.db", "a.ndjson"], { folder })).toEqual(whole(51, 0));
    expect(look()).toEqual(before);
    await store.close();
  });
});

it.each([
  ["UTF-8", "London\xff"],
  // Half of a character.
  ["UTF-16le", "\0\xd8"],
])(
  "a record that is wrong is named and left out, and the others are copied: %s",
  async (encoding, wrong) => {
    const { folder, investors } = await prepare(6, encoding);
    const ids = investors.map(({ id }) => id);
    const db = new DatabaseSync(join(folder, "a.db"));
    const edit = (at: number, field: string, value: string | number | Buffer) => {
      const text = field === "type" ? "?" : "CAST(? AS TEXT)";
      const sql = `UPDATE investors SET ${field} = ${text} WHERE id = unhex(?, '-')`;
      db.prepare(sql).run(value, ids[at] ?? "");
    };
    edit(0, "city", "\ufffd is a character");
    edit(1, "type", 7);
    edit(2, "zip_code", "1\u0000");
    edit(2, "country", "GB");
    edit(4, "city", "x".repeat(maxTextLength + 1));
    edit(5, "city", Buffer.from(wrong, "latin1"));
    db.close();
    const named =
      `error: record ${ids[1]}: type must be individual or institution\n` +
      `error: record ${ids[2]}: zipCode must not contain control characters; country must be two or three lower-case letters (a-z)\n` +
      `error: record ${ids[4]}: city must be at most ${maxTextLength} characters long\n` +
      `error: record ${ids[5]}: its text is not valid Unicode\n`;
    const left = "left out 4 records; copied 2 records, and found 0 already there";
    for (const to of ["sqlite:b.db", "out.ndjson"]) {
      const ended = await copyHere(["sqlite:a.db", to], { folder });
      expect(ended).toEqual(failed(`${named}error: ${left}\n`));
    }
    expect(idsOf(readFileSync(join(folder, "out.ndjson"), "utf8"))).toEqual([ids[0], ids[3]]);
    expect(rowsOf(folder, "b.db")).toBe(2);
    const checked = await copyHere(["sqlite:a.db"], { folder });
    expect(checked).toEqual(failed(`${named}error: left out 4 records; read 2 records\n`));
  },
);

it("a copy that only checks says that all is right, and writes nothing", async () => {
  const { folder } = await prepare(1_200);
  renameSync(join(folder, "a.db"), join(folder, "-a.db"));
  await copyHere(["sqlite:-a.db", "a.ndjson"], { folder });
  const before = readdirSync(folder);
  const told = expect.stringMatching(/^read 1,200 records, in [\d.]+ s \(.* a second\)\n$/);
  const checked = await copy(["--check", "sqlite:-a.db"], { folder });
  expect(checked).toEqual({ code: 0, told, written: "" });
  expect(await copyHere(["a.ndjson"], { folder })).toEqual({ code: 0, told });
  expect(readdirSync(folder)).toEqual(before);
});

describe("a file to copy to", () => {
  it("is for its owner alone, and whole over what a killed copy has left", async () => {
    const { folder, investors } = await prepare(1_100);
    writeFileSync(join(folder, "out.ndjson.partial"), "x".repeat(1_000_000));
    expect(await copyHere(["sqlite:a.db", "out.ndjson"], { folder })).toEqual(whole("1,100", 0));
    const text = readFileSync(join(folder, "out.ndjson"), "utf8");
    expect(idsOf(text)).toEqual(investors.map(({ id }) => id));
    expect(JSON.parse(text.slice(0, text.indexOf("\n")))).toEqual({
      ...JSON.parse(lineOf()),
      ...{ id: investors[0]?.id, firstName: investors[0]?.firstName },
    });
    expect(statSync(join(folder, "out.ndjson")).mode & 0o777).toBe(0o600);
    expect(existsSync(join(folder, "out.ndjson.partial"))).toBe(false);
  });

  it("is refused if it is there, also as a link to nothing", async () => {
    const { folder } = await prepare(2);
    writeFileSync(join(folder, "out.ndjson"), "mine");
    symlinkSync("nothing", join(folder, "link.ndjson"));
    for (const name of ["out.ndjson", "link.ndjson"]) {
      const why = "it already exists: move it away, or name another";
      const ended = await copyHere(["sqlite:a.db", name], { folder });
      expect(ended).toEqual(failed(`error: cannot write to ${name}: ${why}\n`));
    }
    expect(readFileSync(join(folder, "out.ndjson"), "utf8")).toBe("mine");
  });

  it("is whole if a second copy begins while the first one writes", async () => {
    const folder = temporaryFolder();
    const partial = join(folder, "out.ndjson.partial");
    const start = async (lastName: string) => {
      const running = startCopy(["-", "out.ndjson"], { folder });
      running.child.stdin?.write(`${lineOf({ lastName })}\n`);
      const isWritten = () => readFileSync(partial, "utf8").includes(lastName);
      await waitFor(async () => existsSync(partial) && isWritten());
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

  it(
    "is removed again, with one line, if its disk is full or it is stopped",
    needs("mount"),
    async () => {
      const folder = temporaryFolder();
      temporaryDisk(join(folder, "disk"));
      await makeSqlite(folder, "a.db", 500, largest);
      const full = /^error: cannot write to disk\/out.ndjson: ENOSPC[^\n]*was not made\n$/;
      const ended = await copyHere(["sqlite:a.db", "disk/out.ndjson"], { folder });
      expect(ended).toEqual(failed(expect.stringMatching(full)));
      const { child, exited, output } = startCopy(["-", "disk/out.ndjson"], { folder });
      await waitFor(async () => existsSync(join(folder, "disk/out.ndjson.partial")));
      child.kill("SIGINT");
      expect(await exited).toBe(130);
      expect(withoutProgress(output())).toBe("stopped by SIGINT; disk/out.ndjson was not made\n");
      expect(readdirSync(join(folder, "disk"))).toEqual([]);
    },
  );
});

describe("a disk that fails", needs("cc"), () => {
  const createDisk = prepareDisks();

  it("leaves no file whose name it may lose, so that the copy can be repeated", async () => {
    const { folder, env, setRules } = createDisk();
    await makeSqlite(folder, "a.db", 3);
    setRules("sync . 2 EIO");
    const args = ["sqlite:a.db", "data/out.ndjson"];
    const { code, told } = await copy(args, { folder, env });
    expect(told).toMatch(/^error: cannot write to data\/out.ndjson: EIO[^\n]*was not made$/m);
    expect(code).toBe(1);
    expect(readdirSync(join(folder, "data"))).toEqual([]);
    setRules("");
    expect((await copy(args, { folder, env })).code).toBe(0);
    setRules("sync more.ndjson.partial 1 EIO");
    const unsynced = await copy(["sqlite:a.db", "data/more.ndjson"], { folder, env });
    expect(unsynced.told).toMatch(/^error: cannot write to data\/more.ndjson: EIO/m);
    expect(readdirSync(join(folder, "data"))).toEqual(["out.ndjson"]);
    setRules("sync more.ndjson 1 EIO");
    const { status, stderr } = inShell(folder, "copy sqlite:a.db - > data/more.ndjson", env);
    expect(stderr).toMatch(/^error: cannot write to .*EIO/m);
    expect(status).toBe(1);
  });
});

describe("standard output", () => {
  it("gets the records alone, and at the end of a file that is read no more than it had", async () => {
    const { folder, investors } = await prepare(1_500);
    const { written, ...ended } = await copy(["sqlite:a.db", "-"], { folder });
    expect(ended).toEqual(whole("1,500", 0));
    expect(idsOf(written)).toEqual(investors.map(({ id }) => id));
    // More than is read at once.
    const padded = written.replaceAll("\n", `${" ".repeat(24_000)}\n`);
    writeFileSync(join(folder, "a.ndjson"), padded);
    expect(inShell(folder, "copy a.ndjson - >> a.ndjson").status).toBe(0);
    expect(readFileSync(join(folder, "a.ndjson"), "utf8") === padded + written).toBe(true);
  });

  it("that is full or closed ends the copy with status 1", async () => {
    const { folder } = await prepare(3_000);
    const { child, exited, output } = startCopy(["sqlite:a.db", "-"], { folder });
    child.stdout?.once("data", () => child.stdout?.destroy());
    expect(await exited).toBe(1);
    expect(output()).toContain("error: cannot write to standard output: write EPIPE");
    const { status, stderr } = inShell(folder, "copy sqlite:a.db - > /dev/full");
    expect(stderr).toContain("ENOSPC");
    expect(status).toBe(1);
  });
});

describe("a store to copy to", () => {
  it("keeps what it has, counts what is there already, and gets what is new", async () => {
    const { folder } = await prepare(1_200);
    expect((await copyHere(["sqlite:a.db", "sqlite:new/b.db"], { folder })).code).toBe(0);
    await makeSqlite(folder, "a.db", 1);
    expect(await copyHere(["sqlite:a.db", "sqlite:new/b.db"], { folder })).toEqual(
      whole(1, "1,200"),
    );
    expect(await copyHere(["sqlite:a.db", "sqlite:a.db"], { folder })).toEqual(whole(0, "1,201"));
    expect(tableOf(folder, "new/b.db")).toEqual(tableOf(folder, "a.db"));
    expect(statSync(join(folder, "new/b.db")).mode & 0o777).toBe(0o600);
  });

  it("names the conflicts and what an index of it rejects, overwrites none, and gets all others", async () => {
    const { folder, investors } = await prepare(6);
    const [first, second, third] = investors as [Investor, Investor, Investor];
    const { firstName } = third;
    const others = [anInvestor({ id: first.id }), anInvestor({ id: second.id, firstName })];
    await makeSqlite(folder, "b.db", 0);
    runSql(join(folder, "b.db"), "CREATE UNIQUE INDEX own ON investors (first_name)");
    const store = await openSqlite(join(folder, "b.db"));
    for (const other of others) await store.insert(other);
    const { code, told } = await copyHere(["sqlite:a.db", "sqlite:b.db"], { folder });
    expect(told.trimEnd().split("\n").toSorted()).toEqual([
      "error: left out 3 records; copied 3 records, and found 0 already there",
      `error: record ${first.id}: TO has another one under this id, which stays`,
      `error: record ${second.id}: TO has another one under this id, which stays`,
      `error: record ${third.id}: SQLite 2067: UNIQUE constraint failed: investors.first_name`,
    ]);
    expect(code).toBe(1);
    expect(await store.list({ limit: 100 })).toEqual([...others, ...investors.slice(3)]);
    await store.close();
  });

  it("that others read holds all records by itself after a 0", async () => {
    const { folder } = await prepare(500);
    await startService({}, folder);
    const path = "data/investors.db";
    using reader = new DatabaseSync(join(folder, path), { readOnly: true });
    reader.exec("BEGIN; SELECT * FROM investors");
    const { exited } = startCopy(["sqlite:a.db", `sqlite:${path}`], { folder });
    await waitFor(async () => rowsOf(folder, path) === 500);
    // Time in which it must not end.
    await Promise.race([exited, delay(500)]);
    reader.exec("COMMIT");
    expect(await exited).toBe(0);
    expect(tableAlone(folder, path)).toEqual(tableOf(folder, "a.db"));
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
    expect(withoutProgress(output())).toBe(
      `stopped by ${signal}; copied 1 record, and found 0 already there; the same command goes on from there\n`,
    );
    const again = await copy(["-", "sqlite:b.db"], { folder, input: lines.join("\n") });
    expect(again).toMatchObject(whole(1, 1));
  });

  it("that is replaced meanwhile ends the copy with 1", async () => {
    const { folder } = await prepare(10);
    const { child, exited, output } = startCopy(["-", "sqlite:b.db"], { folder });
    child.stdin?.write(`${lineOf()}\n`);
    await waitFor(async () => rowsOf(folder, "b.db") === 1);
    for (const suffix of ["", "-wal", "-shm"]) rmSync(join(folder, `b.db${suffix}`));
    expect((await copyHere(["sqlite:a.db", "sqlite:b.db"], { folder })).code).toBe(0);
    child.stdin?.end();
    expect(await exited, output()).toBe(1);
    expect(output()).toContain("cannot write to sqlite:b.db: b.db or a file beside it was moved");
  });

  it("that is in use by a service serves on, from it and to it", async () => {
    const { folder, investors } = await prepare(1_000);
    const writers = startWriters(grpcClient(await startService({}, folder)));
    const file = "sqlite:data/investors.db";
    await waitFor(() => writers.acknowledged.length > 100);
    const before = writers.acknowledged.map(({ id }) => id);
    expect((await copy([file, "out.ndjson"], { folder })).code).toBe(0);
    const ids = idsOf(readFileSync(join(folder, "out.ndjson"), "utf8"));
    expect(ids).toEqual(expect.arrayContaining(before));
    expect((await copy(["sqlite:a.db", file], { folder })).code).toBe(0);
    const acknowledged = await writers.stop();
    const all = [...investors, ...acknowledged].map(idOf);
    expect(idsIn(join(folder, "data/investors.db"))).toEqual(all.toSorted());
  });
});

it("names all of the first hundred lines that are wrong on a pipe that is read late", () => {
  const folder = temporaryFolder();
  const others = Array.from({ length: 60 }, (_, i) => [`unknownMember${i}`, ""]);
  writeFileSync(join(folder, "a.ndjson"), `${lineOf(Object.fromEntries(others))}\n`.repeat(150));
  const { stdout } = inShell(folder, "copy a.ndjson sqlite:b.db 2>&1 | (sleep 0.5; cat)");
  const named = stdout.match(/^error: line \d+: unknownMember0 .* unknownMember59 .*$/gm);
  expect(named?.map((line) => line.split(":")[1])).toEqual(
    Array.from({ length: 100 }, (_, i) => ` line ${i + 1}`),
  );
  expect(stdout).toMatch(/left out 150 records, of which the first 100 are listed above; copied 0/);
});

it("says at intervals how far it is", async () => {
  const folder = temporaryFolder();
  const { child, exited, output } = startCopy(["-", "sqlite:b.db"], { folder });
  for (let i = 0; i < 100; i += 1) child.stdin?.write(`${lineOf()}\n`);
  const progress = /^100 records, (\d+) a second\n/m;
  const [, rate] = await waitFor(() => progress.exec(output()) ?? undefined);
  // After five seconds.
  expect(Number(rate)).toBeLessThanOrEqual(20);
  child.stdin?.end();
  expect(await exited).toBe(0);
});
