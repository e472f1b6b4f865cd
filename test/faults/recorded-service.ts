/** A service on a recorded disk, and what it has acknowledged. */
import { execFileSync } from "node:child_process";
import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { isDeepStrictEqual } from "node:util";
import { v4, v7 } from "uuid";
import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import { textFields } from "../../src/investor.ts";
import { temporaryFolder } from "../support/folder.ts";
import { listAll } from "../support/pages.ts";
import type { Random } from "../support/random.ts";
import { aCreate } from "../support/records.ts";
import { grpcClient, type Service, startService, waitFor } from "../support/service.ts";
import { createDisk, type Files, readLog } from "./recorded-disk.ts";

const rewriteSql = resolve(import.meta.dirname, "../support/rewrite-sql.ts");

/** A record in one text: its content, and its id in hexadecimal digits. */
interface Entry {
  content: string;
  id: string;
}

/** What a service did to its disk, and what was promised by when. */
export interface Evidence {
  log: string;
  initial: Files;
  /** What was ever asked to be stored. */
  requested: Set<string>;
  /** What was acknowledged or read, with the size that the log had then. */
  promised: (Entry & { position: number })[];
}

type Request = ReturnType<typeof aCreate>;

/** A folder with a service's database in which each process is recorded in one log. */
export interface RecordedService {
  readonly evidence: Evidence;
  /** The folder of the database and its log. */
  readonly data: string;
  /** Starts the service; `rules` are those of recorded-disk.c. */
  start(rules?: string, env?: NodeJS.ProcessEnv): Promise<Service>;
  /** Makes the disk fail from now on. */
  setRules(rules: string): void;
  /** Stores records, 32 at once; each caller gives up at its first failure. */
  create(service: Service, count: number): Promise<void>;
  /** Repeats the creates with a request id that have failed, and reads all records. */
  replay(service: Service): Promise<void>;
  /** Waits until a rule of the running process has struck. */
  struck(): Promise<void>;
  /**
   * Waits for the end of the process.
   *
   * @throws {UnfinishedError} if it was killed between a change and its record's `done`, so that
   *   nobody knows whether it came about
   * @throws {Error} if the log does not account for the files
   */
  ended(service: Service, signal?: NodeJS.Signals): Promise<void>;
  /** The size of the log when a process was last started. */
  lastStart(): number;
  remove(): void;
}

export class UnfinishedError extends Error {}

/** Compiles recorded-disk.c, with shifted-clock.c, into a new folder. */
export function compileRecorder(): string {
  const library = join(mkdtempSync(join(tmpdir(), "recorded-disk-")), "recorded-disk.so");
  const sources = ["recorded-disk.c", "shifted-clock.c"].map((name) =>
    resolve(import.meta.dirname, name),
  );
  execFileSync("cc", ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-o", library, ...sources]);
  return library;
}

/**
 * Prepares a folder.
 *
 * @param sql replacements in the SQL of the service
 * @param before what happened until a power cut
 * @param image what that has left
 */
export function recordService(
  library: string,
  random: Random,
  sql: Record<string, string> = {},
  before?: Evidence,
  image?: { files: Files; position: number },
): RecordedService {
  const folder = realpathSync(temporaryFolder());
  const data = join(folder, "data");
  const log = join(folder, "log");
  const rulesFile = join(folder, "rules");
  mkdirSync(data);
  writeFileSync(log, "");
  for (const [name, content] of image?.files ?? []) writeFileSync(join(data, name), content);
  const evidence: Evidence = {
    log,
    initial: image?.files ?? new Map(),
    requested: new Set(before?.requested),
    promised: (before?.promised ?? [])
      .filter(({ position }) => position <= (image?.position ?? 0))
      .map((entry) => ({ ...entry, position: 0 })),
  };
  let unanswered: Request[] = [];
  let lastStart = 0;

  function promise(investor: Investor): void {
    const { size } = statSync(log);
    evidence.promised.push({ ...entryOf(investor), position: size });
  }

  async function send(service: Service, requests: Request[]): Promise<void> {
    const client = grpcClient(service);
    const waiting = [...requests];
    const caller = async () => {
      for (let request = waiting.shift(); request; request = waiting.shift()) {
        evidence.requested.add(contentOf(request));
        try {
          promise(await client.createInvestor(request));
        } catch {
          if (request.requestId !== undefined) unanswered.push(request);
          return;
        }
      }
    };
    await Promise.all(Array.from({ length: 32 }, caller));
  }

  function setRules(rules: string): void {
    writeFileSync(`${rulesFile}.new`, rules);
    renameSync(`${rulesFile}.new`, rulesFile);
  }

  return {
    evidence,
    data,
    setRules,
    start(rules = "", env = {}) {
      setRules(rules);
      lastStart = statSync(log).size;
      const recorder = {
        LD_PRELOAD: library,
        NODE_COMPILE_CACHE: join(dirname(library), "cache"),
        DISK_FOLDER: data,
        DISK_LOG: log,
        DISK_RULES: rulesFile,
      };
      const rewriter = {
        NODE_OPTIONS: `--import=${rewriteSql}`,
        REWRITE_SQL: JSON.stringify(sql),
      };
      return startService({ ...recorder, ...rewriter, ...env }, folder);
    },

    async create(service, count) {
      const requestId = () => ({ requestId: random.pick([v4, v7])() });
      const request = () => aCreate(random.int(0, 2) === 0 ? {} : requestId());
      await send(service, Array.from({ length: count }, request));
    },

    async replay(service) {
      const requests = unanswered;
      unanswered = [];
      await send(service, requests);
      for (const investor of await listAll(grpcClient(service))) promise(investor);
    },

    async struck() {
      await waitFor(async () =>
        readLog(log).some(({ end, fault }) => end > lastStart && fault !== 0),
      );
    },

    async ended({ child, exited }, signal) {
      if (signal !== undefined) child.kill(signal);
      await exited;
      const records = readLog(log);
      truncateSync(log, records.at(-1)?.end ?? 0);
      const disk = createDisk(evidence.initial);
      for (const record of records) disk.apply(record);
      if (isDeepStrictEqual(disk.seen(), filesOf(data))) return;
      const message = "the log does not account for the files";
      throw disk.isChanging() ? new UnfinishedError(message) : new Error(message);
    },

    lastStart: () => lastStart,
    remove: () => rmSync(folder, { recursive: true }),
  };
}

function filesOf(folder: string): Files {
  const names = readdirSync(folder).filter((name) => !name.endsWith("-shm"));
  return new Map(names.map((name) => [name, readFileSync(join(folder, name))]));
}

function contentOf(record: Pick<Investor, "type" | (typeof textFields)[number]> | Request): string {
  return JSON.stringify([record.type, ...textFields.map((field) => record[field])]);
}

function entryOf(investor: Investor): Entry {
  return { content: contentOf(investor), id: investor.id.replaceAll("-", "") };
}
