import { MongoClient } from "mongodb";
import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import { unlessAborted, whenAborted } from "../abort.ts";
import { ConfigError } from "../config.ts";
import { Batcher } from "./batcher.ts";
import { twice, unavailable } from "./mongodb-command.ts";
import { insertAndReplay } from "./mongodb-insert.ts";
import { createMongoReader } from "./mongodb-reader.ts";
import {
  expectOrder,
  OutcomeUnknownError,
  type Store,
  type StoreOptions,
  StoreUnavailableError,
} from "./store.ts";

/** The shortest interval of heartbeats that the driver allows, in milliseconds. */
const minHeartbeatMs = 500;

/**
 * Keeps records in a MongoDB collection: of a standalone server, a replica set or, sharded
 * on `_id`, a cluster. It connects on first use, whenever the database can be reached. Finding a
 * server, waiting for a connection, making one, and each attempt get a quarter of the timeout.
 *
 * @param url a connection string; the database is the one that it names, or `investors`
 * @throws {ConfigError} the URL is malformed; the message does not repeat it
 */
export function createMongoStore(
  url: string,
  { requestTimeoutMs, observe }: Pick<StoreOptions, "requestTimeoutMs" | "observe">,
): Store {
  const attemptMs = Math.ceil(requestTimeoutMs / 4);
  const { client, db } = createMongoClient(url, attemptMs);
  const reader = createMongoReader(db, attemptMs);
  let connecting: Promise<unknown> | undefined;
  let closing: Promise<void> | undefined;

  /** Connects, once: the driver reconnects by itself, but not if its first attempt fails. */
  async function connect(): Promise<void> {
    connecting ??= client
      .connect()
      .then(() => reader.learn())
      .catch((error) => {
        connecting = undefined;
        throw unavailable(error);
      });
    await connecting;
  }

  const inserts = new Batcher<Investor, undefined>({
    ready: connect,
    run: (investors) => insertAndReplay(db, reader, investors, attemptMs),
    abandoned: (cause) => new OutcomeUnknownError("the insert was not waited for", { cause }),
    observe: (seconds, size) => observe("insert", seconds, size),
  });

  // Apart, so that hits do not wait for what others missed.
  const misses = new Batcher<string, Investor | undefined>({
    async run(ids) {
      const found = await twice(() => reader.find(ids));
      return ids.map((id) => found.get(id));
    },
    observe: (seconds, size) => observe("find", seconds, size),
  });

  const finds = new Batcher<string, Investor | undefined>({
    ready: connect,
    async run(ids) {
      const found = await twice(() => reader.findCommitted(ids));
      return ids.map((id) => found.get(id) ?? misses.add(id));
    },
    observe: (seconds, size) => observe("find", seconds, size),
  });

  /** Rejects if the store is closed or cannot connect, or with the reason of the signal. */
  async function begin(signal: AbortSignal | undefined): Promise<void> {
    if (closing !== undefined) throw new StoreUnavailableError("the store is closed");
    signal?.throwIfAborted();
    await (signal ? unlessAborted(connect(), signal) : connect());
  }

  return {
    insert: (investor, signal) => inserts.add(investor, signal),

    find: (id, call) => finds.add(id, call?.signal),

    async list(range, signal) {
      await begin(signal);
      const start = performance.now();
      try {
        const page = await twice(() => reader.list(range, signal), signal);
        expectOrder(page, range.after);
        return page;
      } finally {
        observe("list", (performance.now() - start) / 1_000);
      }
    },

    async ping(signal) {
      await begin(signal);
      await twice(async () => {
        await reader.learn(signal);
        await reader.list({ limit: 1 }, signal);
      }, signal);
    },

    close(cut) {
      closing ??= Promise.all([inserts, finds, misses].map((each) => each.close())).then(() =>
        client.close(),
      );
      if (cut === undefined) return closing;
      return Promise.race([closing, whenAborted(cut).then(() => client.close())]);
    },
  };
}

/**
 * A client whose attempts take at most `attemptMs` and that is not connected yet, and the database
 * that its URL names, or `investors`.
 *
 * @throws {ConfigError} the URL is malformed; the message does not repeat it
 */
export function createMongoClient(url: string, attemptMs: number) {
  try {
    const client = new MongoClient(url, {
      appName: "investor-records",
      readPreference: "primary",
      // A hidden retry would blur what surely was not written.
      retryWrites: false,
      serverSelectionTimeoutMS: attemptMs,
      waitQueueTimeoutMS: attemptMs,
      connectTimeoutMS: attemptMs,
      heartbeatFrequencyMS: Math.max(attemptMs, minHeartbeatMs),
    });
    return { client, db: client.db(databaseOf(url)) };
  } catch (error) {
    // The message may hold the URL, and the URL a password.
    throw new ConfigError(
      `not a MongoDB connection string (${(error as Error).name}); check its hosts and options, and percent-encode the user and the password in it`,
    );
  }
}

function databaseOf(url: string): string {
  const [, name = ""] = /^mongodb(?:\+srv)?:\/\/[^/?]*\/([^?]*)/.exec(url) ?? [];
  return decodeURIComponent(name) || "investors";
}
