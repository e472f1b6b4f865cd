/** Cuts the power of a recorded service at many points, and looks at what is left. */
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import type { Random } from "../support/random.ts";
import { createDisk, type Files, type LogRecord, readLog } from "./recorded-disk.ts";
import type { Evidence } from "./recorded-service.ts";

/** What a power cut has left. */
export interface Remains {
  files: Files;
  /** The size of the log up to the power cut. */
  position: number;
  /** What is wrong with it. */
  problems: string[];
}

/**
 * Cuts the power at `count` points, in order: half of them anywhere, half just after a promise,
 * all from the position `from` on.
 */
export function* cutPower(
  evidence: Evidence,
  random: Random,
  count: number,
  from = 0,
): Generator<Remains> {
  const records = readLog(evidence.log);
  const newest = records.length - 1;
  const indexAt = (position: number) => {
    const index = records.findIndex(({ end }) => end >= position);
    return index < 0 ? newest : index;
  };
  const first = indexAt(from);
  const promises = evidence.promised.filter(({ position }) => position >= from);
  const points = Array.from({ length: count }, (_, i) =>
    i % 2 === 0 || promises.length === 0
      ? random.int(first, newest)
      : indexAt(random.pick(promises).position),
  ).sort((a, b) => a - b);
  const sparedOf = random.pick([0, 0, 2]);
  const disk = createDisk(evidence.initial, () => random.int(0, 9) < sparedOf);
  let applied = 0;
  for (const point of points) {
    for (const record of records.slice(applied, point + 1)) disk.apply(record);
    applied = Math.max(applied, point + 1);
    const files = disk.afterPowerCut(random);
    const position = (records[point] as LogRecord).end;
    yield { files, position, problems: problemsOf(evidence, files, position) };
  }
}

function problemsOf({ requested, promised }: Evidence, files: Files, position: number): string[] {
  const rows = readRecords(files);
  if (typeof rows === "string") return [rows];
  const problems: string[] = [];
  const found = new Map<string, string>();
  for (const { id, content } of rows) {
    if (found.has(content)) problems.push(`${id} is doubled`);
    if (!requested.has(content)) problems.push(`${id} was never requested`);
    found.set(content, id);
  }
  for (const { id, content, position: promisedAt } of promised) {
    const there = found.get(content);
    if (there === undefined && promisedAt <= position) problems.push(`${id} is lost`);
    if (there !== undefined && there !== id) problems.push(`${id} has another id`);
  }
  return problems;
}

/** Reads what SQLite makes of the files; a text says why it cannot. */
function readRecords(files: Files): { id: string; content: string }[] | string {
  const folder = mkdtempSync(join(tmpdir(), "investor-records-cut-"));
  for (const [name, data] of files) writeFileSync(join(folder, name), data);
  let db: DatabaseSync | undefined;
  try {
    db = new DatabaseSync(join(folder, "investors.db"));
    const check = db.prepare("PRAGMA integrity_check").get()?.integrity_check;
    if (check !== "ok") return `it is damaged: ${check}`;
    const tables = db.prepare("SELECT name FROM sqlite_schema WHERE name = 'investors'").all();
    if (tables.length === 0) return [];
    const rows = db.prepare("SELECT * FROM investors").all();
    return rows.map(({ id, ...fields }) => ({
      id: Buffer.from(id as Uint8Array).toString("hex"),
      content: JSON.stringify(Object.values(fields)),
    }));
  } catch (error) {
    return `it is damaged: ${error}`;
  } finally {
    db?.close();
    rmSync(folder, { recursive: true });
  }
}

/** What is needed to cut the power of a run again in the same ways. */
export interface Kept {
  evidence: Evidence;
  seed: number;
  count: number;
  from: number;
}

/** Keeps it in a new folder, whose path is returned. */
export function keep({ evidence, ...rest }: Kept): string {
  const folder = mkdtempSync(join(tmpdir(), "investor-records-power-cut-"));
  const initial = Array.from(evidence.initial, ([name, data]) => [name, data.toString("base64")]);
  const { promised } = evidence;
  const text = JSON.stringify({ ...rest, promised, requested: [...evidence.requested], initial });
  writeFileSync(join(folder, "evidence.json"), text);
  cpSync(evidence.log, join(folder, "log"));
  return folder;
}

/** Reads what was kept in a folder. */
export function loadKept(folder: string): Kept {
  const kept = JSON.parse(readFileSync(join(folder, "evidence.json"), "utf8"));
  const { initial, requested, promised, ...rest } = kept;
  const files = initial.map(([name, data]: string[]) => [name, Buffer.from(data ?? "", "base64")]);
  const log = join(folder, "log");
  return {
    ...rest,
    evidence: { log, initial: new Map(files), requested: new Set(requested), promised },
  };
}
