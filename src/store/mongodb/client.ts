import {
  type Document,
  MongoClient,
  type MongoClientOptions,
  type RunCommandOptions,
} from "mongodb";
import { DatabaseUrlError } from "../store.ts";

/** The options that a URL may have. The driver has more: deprecated ones, and ones for code. */
const supported = `appName authMechanism authMechanismProperties authSource compressors
  connectTimeoutMS directConnection heartbeatFrequencyMS journal localThresholdMS maxConnecting
  maxIdleTimeMS maxPoolSize minPoolSize readConcernLevel readPreference
  readPreferenceTags replicaSet retryReads retryWrites serverMonitoringMode
  serverSelectionTimeoutMS socketTimeoutMS srvMaxHosts srvServiceName ssl tls
  tlsAllowInvalidCertificates tlsAllowInvalidHostnames tlsCAFile tlsCertificateKeyFile
  tlsCertificateKeyFilePassword tlsCRLFile tlsInsecure w waitQueueTimeoutMS wtimeoutMS
  zlibCompressionLevel`;

const supportedNames = new Set(supported.toLowerCase().split(/\s+/));

/** The shortest interval of heartbeats that the driver allows, in milliseconds. */
const minHeartbeatMs = 500;

/** The driver's options of a command, and a timeout for its whole reply, in milliseconds. */
export type RunOptions = Pick<RunCommandOptions, "raw" | "session"> & { timeoutMs?: number };

/** Runs a command on the database of a store. The default timeout is that of one attempt. */
export type Run = (command: Document, options?: RunOptions) => Promise<Document>;

/**
 * Creates a client, not yet connected, for the database that the URL names, or `investors`. Its
 * commands take little more than `attemptMs`.
 *
 * @throws {DatabaseUrlError} the URL cannot be used; the message repeats no value of it
 */
export function createMongoClient(url: string, attemptMs: number) {
  if (url.includes("#")) throw wrongUrl("write %23 for #");
  // Anything before an @ is part of a password.
  const [, query = ""] = /^[^?]*\?([^@]*)$/s.exec(url) ?? [];
  const options = [...new URLSearchParams(query)];
  const names = [...new Set(options.map(([name]) => name))];
  const others = names.filter((name) => !supportedNames.has(name.toLowerCase()));
  if (others.length > 0) throw wrongUrl(`unknown or unsupported option ${others.join(", ")}`);
  const mechanism = options.find(([name]) => name.toLowerCase() === "authmechanism")?.[1];
  if (/^(GSSAPI|MONGODB-AWS)$/i.test(mechanism ?? "")) {
    throw wrongUrl("authMechanism can be neither GSSAPI nor MONGODB-AWS, which need other modules");
  }
  // The server gives up after `attemptMs`; the margin lets its error arrive.
  const replyMs = attemptMs * 1.25;
  const client = open(url, names, {
    appName: "investor-records",
    readPreference: "primary",
    // A hidden retry would hide whether the first attempt was written.
    retryWrites: false,
    serverSelectionTimeoutMS: attemptMs,
    waitQueueTimeoutMS: attemptMs,
    connectTimeoutMS: attemptMs,
    socketTimeoutMS: replyMs,
    heartbeatFrequencyMS: Math.max(attemptMs, minHeartbeatMs),
  });
  const { tls, minPoolSize, maxPoolSize, compressors, srvHost, hosts } = client.options;
  const { tlsCAFile, tlsCRLFile, tlsCertificateKeyFile } = client.options;
  const files = Object.entries({ tlsCAFile, tlsCRLFile, tlsCertificateKeyFile });
  const ofTls = names.find((name) => /^tls./i.test(name));
  if (ofTls && !tls) throw wrongUrl(`${ofTls} needs tls=true`);
  if (maxPoolSize > 0 && minPoolSize > maxPoolSize) throw wrongUrl("minPoolSize > maxPoolSize");
  if (compressors.includes("snappy")) throw wrongUrl("compressors can be zlib and zstd");
  const [, path = ""] = /^mongodb(?:\+srv)?:\/\/[^/?]*\/([^?]*)/.exec(url) ?? [];
  const database = decodeURIComponent(path) || "investors";
  // `config` is MongoDB's own; `local` is not replicated.
  if (/[/\\. "$&;=\0]|^(local|config)$/.test(database) || Buffer.byteLength(database) > 63) {
    throw wrongUrl('its database has over 63 bytes or one of /\\. "$&;=, or is local or config');
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
    /** Hosts and database: equal for two URLs of the same database. */
    target: `${srvHost ?? hosts.map(String).sort()}/${database}`,
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
    /** The certificate and key files that are read on connecting. */
    files: files.flatMap(([, file]) => file ?? []),
    /** @throws {Error} the server cannot be reached or rejects the user, or a file cannot be read */
    async connect(): Promise<void> {
      await client.connect().catch((error) => {
        const [option] = files.find(([, file]) => file && file === error.path) ?? [];
        throw option ? new Error(`${option} ${error.path} cannot be read (${error.code})`) : error;
      });
    },
  };
}

function open(url: string, names: string[], options: MongoClientOptions): MongoClient {
  try {
    return new MongoClient(url, options);
  } catch (error) {
    // The rest of the driver's message can contain values of the URL.
    const words: string[] = (error as Error).message.toLowerCase().match(/\w+/g) ?? [];
    const causes = names.filter((name) => words.includes(name.toLowerCase()));
    if (causes.length > 0) throw wrongUrl(`check its option ${causes.join(", ")}`);
    const others = names.length > 0 ? ` and its option ${names.join(", ")}` : "";
    throw wrongUrl(`check its hosts${others}, and percent-encode its user, password and database`);
  }
}

function wrongUrl(fault: string): DatabaseUrlError {
  return new DatabaseUrlError(`not a MongoDB connection string: ${fault}`);
}
