import { execFileSync } from "node:child_process";
import { hash } from "node:crypto";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { inject } from "vitest";
import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import { ConfigError } from "../../src/config-error.ts";
import { runCopy } from "../../src/copy/copy.ts";
import { runRemove } from "../../src/remove.ts";
import { createSqliteStore } from "../../src/store/sqlite/sqlite.ts";
import type { Store } from "../../src/store/store.ts";
import { temporaryFolder } from "./folder.ts";
import { aCreate, anInvestor, largest } from "./records.ts";
import { type grpcClient, type Run, run } from "./service.ts";

/** Where a copy runs, and what it gets by its environment and by standard input. */
interface CopySettings {
  folder: string;
  env?: NodeJS.ProcessEnv;
  input?: string;
}

/** Starts `investor-records copy`. */
export function startCopy(args: string[], { folder, env = {}, input }: CopySettings): Run {
  const running = run(["copy", ...args], env, folder);
  if (input !== undefined) running.child.stdin?.end(input);
  return running;
}

/** What a copy says, without how far it is: that is said of one that takes more than five seconds. */
export function withoutProgress(told: string): string {
  return told.replaceAll(/^[\d,]+ records?, [\d,]+ a second\n/gm, "");
}

/** Runs `investor-records copy` to its end. */
export async function copy(args: string[], settings: CopySettings) {
  const { written, exited } = startCopy(args, settings);
  const code = await exited;
  return { code, told: withoutProgress(written.stderr), written: written.stdout };
}

/** Runs a command in this process, which is faster, by paths in a folder; returns its status, too. */
async function runHere(
  folder: string,
  runCommand: (say: (line: string) => void) => Promise<boolean>,
  onLine: (line: string) => void = () => {},
) {
  let told = "";
  const say = (line: string) => {
    told += `${line}\n`;
    onLine(line);
  };
  const here = process.cwd();
  process.chdir(folder);
  try {
    const code = (await runCommand(say)) ? 0 : 1;
    return { code, told: withoutProgress(told) };
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    return { code: 2, told: `error: ${error.message}\n` };
  } finally {
    process.chdir(here);
  }
}

/** Does the same as {@link copy} in this process, without standard input and output. */
export function copyHere(
  [from, to]: [from: string, to?: string | undefined],
  { folder, env: environment = {} }: CopySettings,
) {
  const { signal } = new AbortController();
  return runHere(folder, (say) => runCopy({ from, to, environment, signal, say }));
}

/** Options of a removal, and what is called with each line that it says. */
type RemoveFlags = Partial<Parameters<typeof runRemove>[0]> & { onLine?(line: string): void };

/** Runs `investor-records remove` in this process. */
export function removeHere(
  folder: string,
  database: string,
  id: string,
  { onLine, ...flags }: RemoveFlags = {},
) {
  const options = { database, id, environment: {}, waitMs: 30_000, vacuum: false, ...flags };
  return runHere(folder, (say) => runRemove({ ...options, say }), onLine);
}

/** Opens a store on an SQLite file. */
export function openSqlite(path: string): Promise<Store> {
  const options = { observe() {}, onWarning() {}, onFatal() {} };
  return createSqliteStore(path, options);
}

/** Makes an SQLite file with records of which all differ, but in these fields, and closes it. */
export async function makeSqlite(folder: string, name: string, count: number, fields = {}) {
  const store = await openSqlite(join(folder, name));
  const investors = Array.from({ length: count }, () => anInvestor(fields));
  await Promise.all(investors.map((investor) => store.insert(investor)));
  await store.close();
  return investors.toSorted((a, b) => (a.id < b.id ? -1 : 1));
}

/** Makes a folder for a service, whose SQLite file has this many of the largest records. */
export async function makeFullFolder(count: number): Promise<string> {
  const folder = temporaryFolder();
  await makeSqlite(folder, "data/investors.db", count, largest);
  return folder;
}

const olderTexts =
  "first_name,middle_name,last_name,address_line1,address_line2,city,state,zip_code,country,language";

/** How other programs add rows that have the columns of the first release. */
export const insertInto = `INSERT INTO investors (id, type, ${olderTexts})`;

/** The table of the first release, whose columns stay those whatever later ones add. */
export const olderTable = `CREATE TABLE investors (
  id BLOB PRIMARY KEY NOT NULL CHECK (length(id) = 16),
  type INTEGER NOT NULL,
${olderTexts.replaceAll(/\w+/g, "  $& TEXT NOT NULL").replaceAll(",", ",\n")}) STRICT, WITHOUT ROWID`;

/** Runs a program on files that stores of this process have open: closing one here would drop their locks. */
export const outside = (program: string, ...args: string[]) =>
  execFileSync(program, args, { stdio: "ignore" });

/** Runs SQL on an SQLite file that no store of this process has open. */
export function runSql(path: string, sql: string): void {
  using db = new DatabaseSync(path, { timeout: inject("waitMs") });
  db.exec(sql);
}

/** The table in an SQLite file alone, as whoever copies it without its WAL would have it. */
export function tableAlone(folder: string, name: string): ReturnType<typeof tableOf> {
  const alone = temporaryFolder();
  outside("cp", join(folder, name), join(alone, "alone.db"));
  return tableOf(alone, "alone.db");
}

/** All rows of the table in an SQLite file, in bytes that are equal only if all rows are. */
export function tableOf(folder: string, name: string): { rows: number; digest: string } {
  using db = new DatabaseSync(join(folder, name), { readOnly: true });
  const rows = db.prepare("SELECT hex(id) AS key, * FROM investors ORDER BY id").all();
  const text = JSON.stringify(rows, (name, value) => (name === "id" ? undefined : value));
  return { rows: rows.length, digest: hash("sha256", text) };
}

/** How many records an SQLite file has, also while it is being made. */
export function rowsOf(folder: string, name: string): number {
  try {
    using db = new DatabaseSync(join(folder, name), { readOnly: true });
    return Number(db.prepare("SELECT count(*) AS rows FROM investors").get()?.rows);
  } catch {
    return 0;
  }
}

/** The ids of the records in an SQLite file, without hyphens, in their order. */
export function idsIn(file: string): string[] {
  using db = new DatabaseSync(file, { readOnly: true });
  const rows = db.prepare("SELECT lower(hex(id)) AS id FROM investors ORDER BY id").all();
  return rows.map(idOf);
}

/** An id as idsIn has it. */
export const idOf = ({ id }: { id?: unknown }) => String(id).replaceAll("-", "");

/** Starts callers that create one record after the other by a client, until they are stopped. */
export function startWriters(client: ReturnType<typeof grpcClient>) {
  const acknowledged: Investor[] = [];
  let isOver = false;
  const all = Promise.all(
    Array.from({ length: 16 }, async () => {
      while (!isOver) acknowledged.push(await client.createInvestor(aCreate()));
    }),
  );
  all.catch(() => {});
  return {
    acknowledged,
    /** All that was acknowledged; rejects if a create has failed. */
    async stop(): Promise<Investor[]> {
      isOver = true;
      await all;
      return acknowledged;
    },
  };
}

/** A record as a line of NDJSON, or what it becomes by changes; undefined leaves one out. */
export function lineOf(changes: Record<string, unknown> = {}): string {
  const { $typeName: _, $unknown: __, type: ___, ...texts } = anInvestor();
  return JSON.stringify({ ...texts, type: "individual", ...changes });
}
