import { statSync } from "node:fs";
import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import { ConfigError, isDatabaseUrl, withoutSecrets } from "../config.ts";
import { textFields, typeNames } from "../investor.ts";
import { isUuid } from "../service/ids.ts";
import { openStore, sqlitePathOf } from "../store/open.ts";
import type { Source, Target } from "./endpoint.ts";
import { createNdjsonSource, type NdjsonOptions, openNdjsonSource } from "./ndjson-source.ts";
import { createStreamTarget, openNdjsonTarget } from "./ndjson-target.ts";

/** One side of a copy. */
export interface Endpoint {
  /** What it is called, without what its URL may hold of secrets. */
  name: string;
  /** The file, if it is one. */
  path?: string;
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
  if (value === "-") return { name: side === "FROM" ? "standard input" : "standard output" };
  // What begins like a URL is not meant as a file.
  if (value.endsWith(".ndjson") && !/^[a-z][a-z0-9+.-]+:/i.test(value)) {
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
  if (one !== undefined && one === other) throw new ConfigError("FROM and TO are the same");
}

/**
 * Opens what to copy from. Its errors name it.
 *
 * @throws {Error} in plain words
 */
export async function openSource(from: Endpoint, options: NdjsonOptions): Promise<Source> {
  const { name } = from;
  try {
    const source = await open();
    return { ...source, batches: naming(source.batches) };
  } catch (error) {
    throw toSourceError(error);
  }

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
      throw toSourceError(error);
    }
  }

  function toSourceError(error: unknown): Error {
    return new Error(`cannot read ${name}: ${messageOf(error)}`, { cause: error });
  }
}

/**
 * Opens what to copy to. Its errors name it.
 *
 * @throws {Error} in plain words
 */
export async function openTarget({ name, url, path }: Endpoint): Promise<Target> {
  const target = await explain(open);
  return {
    write: (investors, tally) => explain(() => target.write(investors, tally)),
    finish: () => explain(() => target.finish()),
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
    return path === undefined ? createStreamTarget(process.stdout) : openNdjsonTarget(path);
  }

  async function explain<T>(act: () => Promise<T>): Promise<T> {
    try {
      return await act();
    } catch (error) {
      throw new Error(`cannot write to ${name}: ${messageOf(error)}`, { cause: error });
    }
  }
}

/** The file of an endpoint, if it is there. */
async function identifyFile({ path }: Endpoint): Promise<string | undefined> {
  // Only looked at: closing an SQLite file that was opened would drop the locks on it.
  const file = path === undefined ? path : statSync(path, { bigint: true, throwIfNoEntry: false });
  return file && `${file.dev}:${file.ino}`;
}

async function identifyDatabase({ name, url = "" }: Endpoint): Promise<string> {
  const { identifyMongo } = await import("./mongodb-source.ts");
  return identifyMongo(url, requestTimeoutMs).catch((error) => {
    throw new Error(`cannot reach ${name}: ${messageOf(error)}`, { cause: error });
  });
}

/** Refuses what other programs have put beside the records. */
function refuseForeign(investor: Investor): void {
  const isRecord =
    isUuid(investor.id) &&
    typeNames.has(investor.type) &&
    textFields.every((field) => typeof investor[field] === "string");
  if (!isRecord) throw new Error(`what it has under the id ${investor.id} is no record`);
}

function messageOf(error: unknown): string {
  const message = error instanceof Error ? error.message : String(error);
  return message.replaceAll(/\s+/g, " ");
}
