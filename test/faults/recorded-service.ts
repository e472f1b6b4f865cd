/** A service on a recorded disk, and what it has acknowledged. */
import {
  mkdirSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { isDeepStrictEqual } from "node:util";
import { v4, v7 } from "uuid";
import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import { temporaryFolder } from "../support/folder.ts";
import { listAll } from "../support/pages.ts";
import type { Random } from "../support/random.ts";
import { aCreate } from "../support/records.ts";
import { grpcClient, type Service, startService, waitFor } from "../support/service.ts";
import { contentOf } from "./history.ts";
import { createDisk, type Files, hasStruck, onDisk, readLog, setRules } from "./recorded-disk.ts";

/** What a service did to its disk, and what was promised by when. */
export interface Evidence {
  log: string;
  initial: Files;
  /** The contents that were ever asked to be stored. */
  requested: Set<string>;
  /** What was acknowledged or read, with the size that the log had then. */
  promised: { content: string; id: string; position: number }[];
}

/** A service whose processes are recorded in one log. */
export type RecordedService = ReturnType<typeof recordService>;

/** A process was killed before a change that is logged took effect. */
export class UnfinishedError extends Error {}

/**
 * Prepares a folder.
 *
 * @param before what happened until a power cut
 * @param image what that has left
 */
export function recordService(
  library: string,
  random: Random,
  before?: Evidence,
  image?: { files: Files; position: number },
) {
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
      .map((promise) => ({ ...promise, position: 0 })),
  };
  let unanswered: ReturnType<typeof aCreate>[] = [];
  const lastStart = { began: 0, ready: 0 };

  function promise(investor: Investor): void {
    const position = statSync(log).size;
    evidence.promised.push({ content: contentOf(investor), id: investor.id, position });
  }

  async function send(service: Service, requests: typeof unanswered): Promise<void> {
    const client = grpcClient(service);
    const waiting = [...requests];
    const call = async () => {
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
    await Promise.all(Array.from({ length: 32 }, call));
  }

  /** Some are large, so that the log is brought into the file now and then. */
  function aRequest() {
    const addressLine2 = random.pick(["", "\u{1F3E0}".repeat(256)]);
    const requestId = random.pick([undefined, v4(), v7()]);
    return aCreate({ addressLine1: addressLine2, addressLine2, ...(requestId && { requestId }) });
  }

  return {
    evidence,
    /** Makes the disk fail from now on, by the rules of recorded-disk.c. */
    setRules: (rules: string) => setRules(rulesFile, rules),
    async start(rules = ""): Promise<Service> {
      setRules(rulesFile, rules);
      lastStart.began = statSync(log).size;
      const env = { ...onDisk(library, data, rulesFile), DISK_LOG: log };
      const service = await startService(env, folder);
      lastStart.ready = statSync(log).size;
      return service;
    },
    /** Stores records, 32 at once; each caller gives up at its first failure. */
    create: (service: Service, count: number) =>
      send(service, Array.from({ length: count }, aRequest)),
    /** Repeats the creates with a request id that have failed, and reads all records. */
    async replay(service: Service): Promise<void> {
      const requests = unanswered;
      unanswered = [];
      await send(service, requests);
      for (const investor of await listAll(grpcClient(service))) promise(investor);
    },
    /** Waits until a rule of the running process has struck. */
    async struck(): Promise<void> {
      await waitFor(async () => hasStruck(log, lastStart.began));
    },
    /**
     * Waits for the end of the process.
     *
     * @throws {UnfinishedError} see there
     * @throws {Error} if the log does not account for the files
     */
    async ended({ child, exited }: Service, signal?: NodeJS.Signals): Promise<void> {
      if (signal !== undefined) child.kill(signal);
      await exited;
      const records = readLog(log);
      truncateSync(log, records.at(-1)?.end ?? 0);
      const disk = createDisk(evidence.initial);
      for (const record of records) disk.apply(record);
      if (isDeepStrictEqual(disk.seen(), filesOf(data))) return;
      const message = "the log does not account for the files";
      throw signal === "SIGKILL" ? new UnfinishedError(message) : new Error(message);
    },
    /** The size of the log when a process was last started, and when it was ready. */
    lastStart: () => lastStart,
    remove: () => rmSync(folder, { recursive: true }),
  };
}

function filesOf(folder: string): Files {
  const names = readdirSync(folder).filter((name) => !name.endsWith("-shm"));
  return new Map(names.map((name) => [name, readFileSync(join(folder, name))]));
}
