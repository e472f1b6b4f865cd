import { setTimeout as delay } from "node:timers/promises";
import type { Logger } from "pino";
import { createAuthentication } from "./auth/authentication.ts";
import { createGate } from "./calls/gate.ts";
import { createTelemetry } from "./calls/telemetry.ts";
import { createTracing } from "./calls/tracing.ts";
import { createConnections } from "./http/connection-set.ts";
import { hostsOf } from "./http/cross-origin.ts";
import { type Listener, listen } from "./http/listener.ts";
import { readTls } from "./http/tls.ts";
import { createRoutes } from "./routes.ts";
import { type Config, ConfigError, readDatabase } from "./settings/config.ts";
import { createReload, readSettingFile } from "./settings/reloaded-files.ts";
import { isLoopback } from "./settings/values.ts";
import { openStore } from "./store/database-url.ts";
import { DatabaseUrlError, type Store, StoreUnavailableError } from "./store/store.ts";

/** A server that accepts calls. */
export type RunningServer = Awaited<ReturnType<typeof startServer>>;

/** Interval of store checks, in milliseconds. */
const pingIntervalMs = 1_000;

/** Timeout of a store check, in milliseconds. */
const pingTimeoutMs = 5_000;

/** The shortest drain delay, in milliseconds: HTTP/1.1 clients learn meanwhile, with each reply, to close. */
const minDrainDelayMs = 100;

/** How long requests and replies may still be in flight on the network, in milliseconds. */
const flushMs = 200;

/**
 * How long the database may take to close, in milliseconds. Supervisors wait little longer, and
 * nothing is lost if it does not finish.
 */
const closeMs = 4_000;

/**
 * Opens the store and serves it until stopped. Listens before the store is open; until then, calls
 * fail with STORE_UNAVAILABLE, and `/readyz` with 503.
 *
 * @param onFatal called once if the server cannot go on and the process has to end
 * @param droppedLines how many lines the log has dropped so far
 * @throws {ConfigError} a file or a database URL of the settings cannot be used
 * @throws {Error} for operators, if the store cannot be used, or listening fails
 */
export async function startServer(
  config: Config,
  log: Logger,
  onFatal: (error: Error) => void,
  droppedLines = () => 0,
) {
  const { host, ports, corsOrigins, limits, drain } = config;
  const { maxInFlight, maxConnections, requestTimeoutMs, maxConnectionAgeMs } = limits;
  const onWarning = (message: string) => log.warn(message);
  const { databaseUrlFile: file } = config;
  const flag = file === undefined ? "--database-url" : `--database-url-file ${file}`;
  const database =
    file === undefined
      ? config.database
      : readDatabase(
          `${flag}: its URL`,
          String(await readSettingFile("--database-url-file", file)).trim(),
        );
  const tls = config.tls && (await readTls(config.tls, onWarning));
  const authentication =
    config.authentication && (await createAuthentication(config.authentication, onWarning));
  const telemetry = createTelemetry(log, config.logCalls);
  telemetry.showDroppedLines(droppedLines);
  if (tls) {
    telemetry.show(
      "investor_records_tls_certificate_expiry_timestamp_seconds",
      "When the certificate of the server expires, in seconds since 1970.",
      () => tls.expiresAt().getTime() / 1_000,
    );
  }
  let startSpan = createTracing();
  let stopTraces = async () => {};
  if (!startSpan && config.exportsSpans) {
    const { startTraceExport } = await import("./calls/trace-export.ts");
    stopTraces = startTraceExport(log);
    startSpan = createTracing();
  }
  const connections = createConnections({
    max: maxConnections,
    maxAgeMs: maxConnectionAgeMs,
    onEnd: telemetry.noteEnd,
  });
  const gate = createGate({
    maxInFlight,
    requestTimeoutMs,
    authenticate: authentication?.authenticate,
    telemetry,
    logFault: telemetry.logFault,
    startSpan,
  });
  const hosts = !authentication && isLoopback(host) ? hostsOf(host) : undefined;
  const store = createClosedStore();
  const routes = createRoutes(store, { gate, telemetry, corsOrigins, hosts });
  const { streamServer, serve } = routes;
  let listener: Listener | undefined;
  let stopFollowing = () => {};
  try {
    // Before opening the database, which can take long: probes are served meanwhile.
    listener = await listen({
      host,
      ports,
      tls,
      requestTimeoutMs,
      connections,
      streamServer,
      serve,
    });
    const opened = await openStore(database, {
      requestTimeoutMs,
      observe: telemetry.observeStore,
      onWritable: telemetry.noteWritable,
      onWalSize: telemetry.showWalSize,
      onWarning,
      onNew: (path) =>
        onWarning(`${path} is a new file without records; if it had any, its disk may be missing`),
      async onFatal(error) {
        // The store has failed calls in flight with an unknown outcome: lets their replies leave
        // the process, which can be later than their `finish` event.
        await delay(flushMs);
        onFatal(error);
      },
    });
    // Replaces the methods in place, since the handlers already hold this object.
    Object.assign(store, opened);
    stopFollowing = await followStore(store, log, routes.setReady);
  } catch (error) {
    listener?.close();
    connections.destroy();
    throw error instanceof DatabaseUrlError
      ? new ConfigError(`${flag} is ${error.message}`)
      : error;
  }
  const { close } = listener;

  return {
    ports: listener.ports,
    /** The database URL, without secrets. */
    database: database.name,
    /** Re-reads certificates and tokens, without dropping a call. */
    reload: createReload({ tokens: authentication?.reload, certificates: tls?.reload }),
    /**
     * Shuts down in order: health checks fail, the drain delay passes, no new calls are admitted,
     * calls in flight finish or are cut off by the drain timeout, the store is closed.
     *
     * @returns what was not finished, for the log; undefined if everything was
     */
    async stop(): Promise<string | undefined> {
      stopFollowing();
      authentication?.stop?.();
      routes.setReady(false);
      connections.closeAfterReplies();
      await delay(Math.max(drain.delayMs, minDrainDelayMs));
      close();
      connections.retire();
      let lastCallAt = performance.now();
      const end = lastCallAt + drain.timeoutMs + flushMs;
      const isDone = () => {
        if (gate.inFlight > 0) lastCallAt = performance.now();
        if (connections.isEmpty) return gate.inFlight === 0;
        // A request, or the last bytes of a reply, may be on the network.
        return performance.now() - lastCallAt > flushMs && !connections.mayBeReading;
      };
      while (!isDone() && performance.now() < end) await delay(10);
      const unfinished = gate.inFlight === 0 ? [] : ["cut calls in flight"];
      connections.destroy();
      const closeStore = store.close().catch((error: Error) => {
        unfinished.push(error.message);
      });
      const closed = Promise.all([closeStore, stopTraces()]);
      const timeUp = delay(closeMs, "time is up" as const, { ref: false });
      if ((await Promise.race([closed, timeUp])) === "time is up") {
        unfinished.push("could not close the database in time");
      }
      return unfinished.join(", and ") || undefined;
    },
  };
}

/** Stands in for the store until it is open: fails all calls. */
function createClosedStore(): Store {
  const fail = () => Promise.reject(new StoreUnavailableError("the database is being opened"));
  return { insert: fail, find: fail, list: fail, ping: fail, close: async () => {} };
}

/** Checks periodically whether the store can serve, and reports changes. */
async function followStore(store: Store, log: Logger, setReady: (isReady: boolean) => void) {
  let wasServing: boolean | undefined;
  let stopped = false;
  let timer: NodeJS.Timeout | undefined;

  async function ask(): Promise<void> {
    const signal = AbortSignal.timeout(pingTimeoutMs);
    const failure = await store
      .ping(signal)
      .catch((error) =>
        error === signal.reason ? new Error(`no reply within ${pingTimeoutMs} ms`) : error,
      );
    if (stopped) return;
    const isServing = failure === undefined;
    if (isServing !== wasServing) {
      setReady(isServing);
      if (!isServing) log.error({ err: failure }, "the store is not ready");
      else if (wasServing !== undefined) log.info("the store is ready again");
    }
    wasServing = isServing;
    timer = setTimeout(ask, pingIntervalMs);
  }

  await ask();
  return () => {
    stopped = true;
    clearTimeout(timer);
  };
}
