import { setTimeout as delay } from "node:timers/promises";
import type { Logger } from "pino";
import { whenAborted } from "./abort.ts";
import { createAuthentication } from "./auth/authentication.ts";
import { createGate } from "./calls/gate.ts";
import { createTracing } from "./calls/span.ts";
import { createTelemetry } from "./calls/telemetry.ts";
import { type Config, ConfigError, isLoopback } from "./config.ts";
import { createConnections } from "./http/connections.ts";
import { hostsOf } from "./http/cross-origin.ts";
import { type Listener, startListener } from "./http/listener.ts";
import { readTls } from "./http/tls.ts";
import { createRouter } from "./protocols/router.ts";
import { openStore } from "./store/open.ts";
import type { Store } from "./store/store.ts";

/** A server that takes calls. */
export interface RunningServer {
  readonly grpcPort: number;
  readonly httpPort: number;
  /**
   * Reads the certificates and tokens again, without dropping a call. What cannot be used
   * stays as it was.
   *
   * @returns what was read, and what could not be used
   */
  reload(): Promise<{ reloaded: string[]; errors: Error[] }>;
  /**
   * Shuts down in order: health checks fail, the drain delay passes, no new calls are admitted,
   * those in flight finish, the store is closed. The signal cuts what is left at once.
   *
   * @returns whether every call in flight has finished, and whether the store is closed,
   *   which it may not be if the signal aborted
   */
  stop(cut?: AbortSignal): Promise<{ isClean: boolean; isClosed: boolean }>;
}

/** Interval of the checks of the store, in milliseconds. */
const pingIntervalMs = 1_000;

/** Timeout of such a check, in milliseconds. */
const pingTimeoutMs = 5_000;

/** The time that replies get to reach the sockets, in milliseconds. */
const flushMs = 200;

/**
 * Opens the store and serves it until stopped.
 *
 * @param onFatal called once if the server cannot go on and the process has to end
 * @throws {ConfigError} a file or a database URL of the settings cannot be used
 * @throws {Error} in plain words, if the store cannot be used or the port not be listened on
 */
export async function startServer(
  config: Config,
  log: Logger,
  onFatal: (error: Error) => void,
): Promise<RunningServer> {
  const { databaseUrl, listen, corsOrigins, limits, drain } = config;
  const { host } = listen;
  const { maxInFlight, maxConnections, requestTimeoutMs, maxConnectionAgeMs } = limits;
  const tls = config.tls && (await readTls(config.tls));
  const onWarning = (message: string) => log.warn(message);
  const authentication =
    config.authentication && (await createAuthentication(config.authentication, onWarning));
  const telemetry = createTelemetry(log);
  const authenticate = authentication?.authenticate;
  const startSpan = createTracing();
  const admission = { maxInFlight, requestTimeoutMs, authenticate, telemetry, log, startSpan };
  const gate = createGate(admission);
  const opening = openStore(databaseUrl, {
    requestTimeoutMs,
    observe: telemetry.observeStore,
    onWrite: telemetry.showWritable,
    onWarning,
    async onFatal(error) {
      // Calls in flight are first failed with an unknown outcome.
      await Promise.race([gate.whenEmpty(), delay(flushMs)]);
      onFatal(error);
    },
  }).catch((error) => {
    if (error instanceof ConfigError) throw new ConfigError(`--database-url is ${error.message}`);
    throw error;
  });
  // Loaded while a store starts its thread.
  const [store, { createHandlers }] = await Promise.all([opening, import("./handlers.ts")]);
  const handlers = createHandlers(store, gate, telemetry);
  const stopFollowing = await followStore(store, log, handlers.setReady);
  const routing = {
    corsOrigins,
    hosts: !authentication && isLoopback(host) ? hostsOf(host) : undefined,
    onRefusal: telemetry.refuse,
    log,
  };
  const connections = createConnections(maxConnections);
  const common = { tls, host, requestTimeoutMs, maxConnectionAgeMs, connections };
  const listeners: Listener[] = [];
  try {
    for (const [port, versions, served] of [
      [listen.grpcPort, ["h2"], handlers.grpc],
      [listen.httpPort, ["http/1.1", "h2"], handlers.http],
    ] as const) {
      const serve = createRouter({ ...routing, handlers: served });
      listeners.push(await startListener({ ...common, port, versions, serve }));
    }
  } catch (error) {
    stopFollowing();
    for (const listener of listeners) listener.destroy();
    await store.close();
    throw error;
  }
  const [grpcPort = 0, httpPort = 0] = listeners.map(({ port }) => port);

  return {
    grpcPort,
    httpPort,
    async reload() {
      const reloaded: string[] = [];
      const errors: Error[] = [];
      const reloads = { tokens: authentication?.reload, certificates: tls?.reload };
      for (const [what, reload] of Object.entries(reloads)) {
        try {
          await reload?.();
          if (reload) reloaded.push(what);
        } catch (error) {
          errors.push(error as Error);
        }
      }
      return { reloaded, errors };
    },
    async stop(cut = new AbortController().signal) {
      stopFollowing();
      handlers.setReady(false);
      for (const listener of listeners) listener.announceDrain();
      await pause(drain.delayMs, cut);
      handlers.endWatches();
      const finished = Promise.all(listeners.map((listener) => listener.drain()))
        // A call that comes before its client was told is served.
        .then(() => gate.whenEmpty());
      await Promise.race([finished, pause(drain.timeoutMs, cut)]);
      // What holds a connection open now is a reflection stream, or a client that does not close it.
      const closed = Promise.all(listeners.map((listener) => listener.closed));
      if (gate.inFlight === 0) await Promise.race([closed, pause(flushMs, cut)]);
      const isClean = gate.inFlight === 0;
      for (const listener of listeners) listener.destroy();
      const closing = store.close(cut).then(() => true);
      const givenUp = whenAborted(cut).then(() => delay(flushMs, false));
      return { isClean, isClosed: await Promise.race([closing, givenUp]) };
    },
  };
}

/** Checks at intervals whether the store can serve, and reports when that changes. */
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

async function pause(ms: number, cut: AbortSignal): Promise<void> {
  await delay(ms, undefined, { signal: cut, ref: false }).catch(() => {});
}
