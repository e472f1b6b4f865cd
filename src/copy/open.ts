import { fstatSync, statSync } from "node:fs";
import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import { ConfigError, isDatabaseUrl, withoutSecrets } from "../config.ts";
import { textFields, typeNames } from "../investor.ts";
import { isUuid } from "../service/ids.ts";
import { openStore, sqlitePathOf } from "../store/open.ts";
import type { Source, Target } from "./endpoint.ts";
import { createNdjsonSource, type NdjsonOptions, openNdjsonSource } from "./ndjson-source.ts";
import { createStdoutTarget, openNdjsonTarget } from "./ndjson-target.ts";

/** One side of a copy. */
export interface Endpoint {
  /** What it is called, without what its URL may hold of secrets. */
  name: string;
  /** The file, if it is one. */
  path?: string;
  /** The descriptor of standard input or output, if it is one of them. */
  fd?: number;
  /** The database, if it is one. */
  url?: string;
}

/**
 * The time that a database may take for a batch, in milliseconds. An attempt gets a quarter,
 * which is more than an election takes by default.
 */
const requestTimeoutMs = 60_000;

const accepted =
  "sqlite:PATH, sqlite:///PATH from the root, mongodb://HOST, mongodb+srv://HOST, " +
  "env:NAME of a variable that holds one of these, a file PATH.ndjson, or -";

/**
 * Reads an argument.
 *
 * @param side what the argument is called
 * @throws {ConfigError} it names nothing that can be copied from or to
 */
export function readEndpoint(side: string, text: string, environment: NodeJS.ProcessEnv): Endpoint {
  const [, name] = /^env:(.*)$/s.exec(text) ?? [];
  const value = name === undefined ? text : environment[name];
  if (value === undefined || (name !== undefined && !isDatabaseUrl(value))) {
    throw new ConfigError(`${side}: the environment has no database URL under this name`);
  }
  if (isDatabaseUrl(value)) {
    const path = sqlitePathOf(value);
    return { name: withoutSecrets(value), url: value, ...(path !== undefined && { path }) };
  }
  if (value === "-") {
    return side === "FROM" ? { name: "standard input", fd: 0 } : { name: "standard output", fd: 1 };
  }
  // What begins like a URL is not meant as a file.
  if (value.endsWith(".ndjson") && !/^([a-z0-9+.-]+:\/\/|sqlite:)/i.test(value)) {
    return { name: value, path: value };
  }
  // The value may hold a password, and is not repeated.
  throw new ConfigError(`${side} must be ${accepted}`);
}

/**
 * Refuses a copy of a database or file to itself, however the two are spelled.
 *
 * @throws {ConfigError} they are one
 * @throws {Error} in plain words, if a database cannot be reached
 */
export async function refuseSamePlace(from: Endpoint, to: Endpoint): Promise<void> {
  const isMongo = (each: Endpoint) => each.url !== undefined && each.path === undefined;
  const identify = isMongo(from) && isMongo(to) ? identifyDatabase : identifyFile;
  const [one, other] = await Promise.all([identify(from), identify(to)]);
  if (one === undefined) return;
  if (one === other) throw new ConfigError("FROM and TO are the same");
  if (to.url !== undefined || to.path === undefined) return;
  const partial = `${to.path}.partial`;
  if (one === (await identifyFile({ name: partial, path: partial }))) {
    throw new ConfigError("FROM is what TO replaces: rename it first");
  }
}

/**
 * Opens what to copy from. Its errors name it.
 *
 * @throws {Error} in plain words
 */
export async function openSource(from: Endpoint, options: NdjsonOptions): Promise<Source> {
  const fail = failing(`cannot read ${from.name}`);
  const source = await open().catch(fail);
  return { ...source, batches: naming(source.batches) };

  async function open(): Promise<Source> {
    if (from.url !== undefined) {
      if (from.path !== undefined) {
        const { openSqliteSource } = await import("./sqlite-source.ts");
        return openSqliteSource(from.path);
      }
      const { openMongoSource } = await import("./mongodb-source.ts");
      return openMongoSource(from.url, requestTimeoutMs);
    }
    if (from.path !== undefined) return openNdjsonSource(from.path, options);
    return createNdjsonSource(process.stdin, options);
  }

  async function* naming(batches: Source["batches"]) {
    try {
      for await (const batch of batches) {
        batch.forEach(refuseForeign);
        yield batch;
      }
    } catch (error) {
      fail(error);
    }
  }
}

/**
 * Opens what to copy to. Its errors name it.
 *
 * @throws {Error} in plain words
 */
export async function openTarget({ name, url, path }: Endpoint): Promise<Target> {
  const fail = failing(`cannot write to ${name}`);
  const target = await open().catch(fail);
  return {
    write: (investors, tally) => target.write(investors, tally).catch(fail),
    finish: () => target.finish().catch(fail),
    close: () => target.close(),
  };

  async function open(): Promise<Target> {
    if (url !== undefined) {
      const { createStoreTarget } = await import("./store-target.ts");
      const ignore = () => {};
      // What is fatal to a service is told by the write that meets it.
      const calls = { observe: ignore, onWrite: ignore, onWarning: ignore, onFatal: ignore };
      const store = await openStore(url, { requestTimeoutMs, ...calls });
      // One of MongoDB is not connected yet.
      await store.ping().catch(async (error) => {
        await store.close();
        throw error;
      });
      return createStoreTarget(store);
    }
    return path === undefined ? createStdoutTarget() : openNdjsonTarget(path);
  }
}

/** The file of an endpoint, if it is there. */
async function identifyFile({ path, fd }: Endpoint): Promise<string | undefined> {
  // Only looked at: closing an SQLite file that was opened would drop the locks on it.
  const ofPath =
    path === undefined ? undefined : statSync(path, { bigint: true, throwIfNoEntry: false });
  const file = fd === undefined ? ofPath : fstatSync(fd, { bigint: true });
  return file?.isFile() ? `${file.dev}:${file.ino}` : undefined;
}

async function identifyDatabase({ name, url = "" }: Endpoint): Promise<string> {
  const { identifyMongo } = await import("./mongodb-source.ts");
  return identifyMongo(url, requestTimeoutMs).catch(failing(`cannot reach ${name}`));
}

/** Refuses what other programs have put beside the records. */
function refuseForeign(investor: Investor): void {
  const isRecord =
    isUuid(investor.id) &&
    typeNames.has(investor.type) &&
    textFields.every((field) => typeof investor[field] === "string");
  if (!isRecord) throw new Error(`what it has under the id ${investor.id} is no record`);
}

/** Throws an error that says in one line what failed, and why. */
function failing(what: string): (error: unknown) => never {
  return (error) => {
    const message = error instanceof Error ? error.message : String(error);
    throw new Error(`${what}: ${message.replaceAll(/\s+/g, " ")}`, { cause: error });
  };
}
