import { unescape as decode } from "node:querystring";
import {
  type Document,
  MongoClient,
  type MongoClientOptions,
  type RunCommandOptions,
} from "mongodb";
import { ConfigError } from "../../config-error.ts";

/** The shortest interval of heartbeats that the driver allows, in milliseconds. */
const minHeartbeatMs = 500;

/** The driver's options of a command, and a timeout for its whole reply, in milliseconds. */
type RunOptions = Pick<RunCommandOptions, "fieldsAsRaw"> & { timeoutMs?: number };

/** Runs a command on the database of a store. The default timeout is that of one attempt. */
export type Run = (command: Document, options?: RunOptions) => Promise<Document>;

/**
 * Creates a client, not yet connected, for the database that the URL names, or `investors`. Its
 * commands take little more than `attemptMs`.
 *
 * @throws {ConfigError} the URL cannot be used; the message repeats no value of it
 */
export function createMongoClient(url: string, attemptMs: number) {
  // The server gives up after `attemptMs`; the margin lets its error arrive.
  const replyMs = attemptMs * 1.25;
  const client = open(url, {
    appName: "investor-records",
    readPreference: "primary",
    // Counts in replies are numbers.
    promoteValues: true,
    // A hidden retry would hide whether the first attempt was written.
    retryWrites: false,
    serverSelectionTimeoutMS: attemptMs,
    waitQueueTimeoutMS: attemptMs,
    connectTimeoutMS: attemptMs,
    socketTimeoutMS: replyMs,
    heartbeatFrequencyMS: Math.max(attemptMs, minHeartbeatMs),
  });
  // Anything before an @ is part of a password.
  const [, query = ""] = /^[^?]*\?([^@]*)$/s.exec(url) ?? [];
  const hasTlsOptions = [...new URLSearchParams(query).keys()].some((name) => /^tls./i.test(name));
  // The driver would connect in plain text.
  if (hasTlsOptions && !client.options.tls) throw wrongUrl("its tls… options need tls=true");
  const [, path = ""] = /^mongodb(?:\+srv)?:\/\/[^/?]*\/([^?]*)/.exec(url) ?? [];
  const database = decode(path) || "investors";
  // `config` is MongoDB's own; `local` is not replicated. The rest is a mistake before an option, such as & for ?.
  if (/[/\\. "$&;=#\0]|^(local|config)$/.test(database)) {
    throw wrongUrl('its database has one of /\\. "$&;=#, or is local or config');
  }
  let primary: string | undefined;
  let isKnown = false;
  /** Commands to abort when the primary changes. */
  const running = new Set<AbortController>();
  client.on("topologyDescriptionChanged", ({ newDescription: { servers } }) => {
    const { address } = Array.from(servers.values()).find(({ type }) => type === "RSPrimary") ?? {};
    isKnown = address !== undefined;
    if (address === undefined || address === primary) return;
    primary = address;
    const reason = new Error("another member has become the primary");
    for (const command of running) command.abort(reason);
  });
  const db = client.db(database);
  return {
    client,
    db,
    /**
     * Runs a command, and closes its connection if the whole reply has not arrived in time: the
     * driver's own timeouts restart with each byte. A new primary aborts it as well, since a frozen
     * old one would hold it up. Commands that start while no primary is known wait for one.
     */
    async run(command: Document, options: RunOptions = {}): Promise<Document> {
      const { timeoutMs = replyMs, ...others } = options;
      const control = new AbortController();
      const end = () => control.abort(new Error(`no whole reply within ${timeoutMs} ms`));
      const timer = setTimeout(end, timeoutMs);
      if (isKnown) running.add(control);
      try {
        const { signal } = control;
        return await db.command({ ...command, maxTimeMS: attemptMs }, { ...others, signal });
      } finally {
        clearTimeout(timer);
        running.delete(control);
      }
    },
  };
}

function open(url: string, options: MongoClientOptions): MongoClient {
  try {
    return new MongoClient(url, options);
  } catch {
    // The driver's message can repeat any part of the URL, in any form.
    throw wrongUrl(
      "check its options and hosts, and percent-encode its user, password and database",
    );
  }
}

function wrongUrl(fault: string): ConfigError {
  return new ConfigError(`not a MongoDB connection string: ${fault}`);
}
