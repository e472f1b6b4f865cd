import { ConfigError } from "../config.ts";
import { expectRecord } from "../investor.ts";
import { openStore } from "../store/open.ts";
import { inPlainWords } from "../store/sqlite-errors.ts";
import type { Source, Target } from "./copier.ts";
import { type Endpoint, identifyFile, requestTimeoutMs } from "./endpoint.ts";
import { createNdjsonSource, type NdjsonOptions, openNdjsonSource } from "./ndjson-source.ts";
import { createStdoutTarget, openNdjsonTarget } from "./ndjson-target.ts";
import { openSqliteSource } from "./sqlite-source.ts";
import { createStoreTarget } from "./store-target.ts";

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
  if (one === identifyFile({ path: `${to.path}.partial` })) {
    throw new ConfigError("FROM is what TO replaces: rename it first");
  }
}

/**
 * Opens what to copy from. Its errors name it.
 *
 * @throws {Error} in plain words
 */
export async function openSource(
  { name, url, path }: Endpoint,
  options: NdjsonOptions,
): Promise<Source> {
  const fail = failing(`cannot read ${name}`);
  const source = await open().catch(fail);
  return { ...source, batches: naming(source.batches) };

  async function open(): Promise<Source> {
    if (path !== undefined) {
      return url === undefined ? openNdjsonSource(path, options) : openSqliteSource(path);
    }
    if (url === undefined) return createNdjsonSource(process.stdin, options);
    const { openMongoSource } = await import("./mongodb-source.ts");
    return openMongoSource(url);
  }

  async function* naming(batches: Source["batches"]) {
    try {
      for await (const batch of batches) {
        batch.forEach(expectRecord);
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
    ...target,
    write: (investors, tally) => target.write(investors, tally).catch(fail),
    finish: () => target.finish().catch(fail),
  };

  async function open(): Promise<Target> {
    if (url === undefined) {
      return path === undefined ? createStdoutTarget() : openNdjsonTarget(path);
    }
    const ignore = () => {};
    // A fatal error also fails the write that meets it.
    const callbacks = { observe: ignore, onWrite: ignore, onWarning: ignore, onFatal: ignore };
    const store = await openStore(url, { requestTimeoutMs, ...callbacks });
    // One of MongoDB is not connected yet.
    await store.ping().catch(async (error) => {
      await store.close();
      throw error;
    });
    return createStoreTarget(store);
  }
}

async function identifyDatabase({ name, url = "" }: Endpoint): Promise<string> {
  const { identifyMongo } = await import("./mongodb-source.ts");
  return identifyMongo(url).catch(failing(`cannot reach ${name}`));
}

/** Throws an error that says in one line what failed, and why. */
function failing(what: string): (error: unknown) => never {
  return (error) => {
    const line = `${what}: ${inPlainWords(error).replaceAll(/\s+/g, " ")}`;
    throw error instanceof ConfigError ? new ConfigError(line) : new Error(line, { cause: error });
  };
}
