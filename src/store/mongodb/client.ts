import {
  type Document,
  MongoClient,
  type MongoClientOptions,
  type RunCommandOptions,
} from "mongodb";
import { DatabaseUrlError } from "../store.ts";

/** The options that a URL may have. The driver takes more: deprecated ones, and those of programs. */
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

/** The driver's options of a command, and how long its whole reply may take, in milliseconds. */
export type RunOptions = Pick<RunCommandOptions, "raw" | "session"> & { timeoutMs?: number };

/** Runs a command on the database of a store; by default within the time of an attempt. */
export type Run = (command: Document, options?: RunOptions) => Promise<Document>;

/**
 * Creates a client that is not connected yet, and whose commands take little more than `attemptMs`,
 * for the database that the URL names, or `investors`.
 *
 * @throws {DatabaseUrlError} the URL cannot be used; the message has no values of it
 */
export function createMongoClient(url: string, attemptMs: number) {
  if (url.includes("#")) throw wrongUrl("write %23 for #");
  // What is followed by an @ is a part of a password.
  const [, query = ""] = /^[^?]*\?([^@]*)$/s.exec(url) ?? [];
  const options = [...new URLSearchParams(query)];
  const names = [...new Set(options.map(([name]) => name))];
  const others = names.filter((name) => !supportedNames.has(name.toLowerCase()));
  if (others.length > 0) throw wrongUrl(`unknown or unsupported option ${others.join(", ")}`);
  const mechanism = options.find(([name]) => name.toLowerCase() === "authmechanism")?.[1];
  if (/^(GSSAPI|MONGODB-AWS)$/i.test(mechanism ?? "")) {
    throw wrongUrl("authMechanism can be neither GSSAPI nor MONGODB-AWS, which need other modules");
  }
  // The server gives up after the time of an attempt, and has a little longer to say so.
  const replyMs = attemptMs * 1.25;
  const client = open(url, names, {
    appName: "investor-records",
    readPreference: "primary",
    // A hidden retry would blur what surely was not written.
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
  // MongoDB keeps data of its own in the last two, and does not replicate local.
  if (/[/\\. "$&;=\0]|^(local|config)$/.test(database) || Buffer.byteLength(database) > 63) {
    throw wrongUrl('its database has over 63 bytes or one of /\\. "$&;=, or is local or config');
  }
  let primary: string | undefined;
  let isKnown = false;
  /** Commands that another primary ends. */
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
    /** Its hosts and database, which two URLs of the same database have in common. */
    target: `${srvHost ?? hosts.map(String).sort()}/${database}`,
    /**
     * Runs a command, and closes its connection if the whole reply is not there in time: the driver's
     * own timeouts begin again with each byte. When another primary is found the command ends, too:
     * one that is frozen would hold it up. Commands that begin while there is none wait for the next.
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
    /** The files with certificates and keys that it reads when it connects. */
    files: files.flatMap(([, file]) => file ?? []),
    /** @throws {Error} it cannot be reached, refuses the user, or a file cannot be read */
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
    // The rest of the driver's message can hold values of the URL.
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
