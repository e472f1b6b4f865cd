import { setTimeout as delay } from "node:timers/promises";
import { createServiceImplSpec } from "@connectrpc/connect";
import type { Logger } from "pino";
import { Health } from "../gen/grpc/health/v1/health_pb.js";
import { ServerReflection } from "../gen/grpc/reflection/v1/reflection_pb.js";
import { ServerReflection as ServerReflectionAlpha } from "../gen/grpc/reflection/v1alpha/reflection_pb.js";
import { InvestorService } from "../gen/investor/v1/investor_pb.js";
import { createAuthentication } from "./auth/authentication.ts";
import { createGate } from "./calls/gate.ts";
import { createTelemetry } from "./calls/telemetry.ts";
import { areSpansExported, createTracing } from "./calls/tracing.ts";
import { ConfigError } from "./config-error.ts";
import { createHealth } from "./endpoints/health.ts";
import { createProbesAndMetrics } from "./endpoints/probes-and-metrics.ts";
import { createReflection } from "./endpoints/reflection.ts";
import { createConnections } from "./http/connection-set.ts";
import { hostsOf } from "./http/cross-origin.ts";
import { listen } from "./http/listener.ts";
import { readTls } from "./http/tls.ts";
import { createRest } from "./protocols/rest.ts";
import { createRouter, type RouterOptions } from "./protocols/router.ts";
import { createInvestorService } from "./service/investors.ts";
import type { Config } from "./settings/config.ts";
import { createReload, readSettingFile } from "./settings/reloaded-files.ts";
import { isLoopback } from "./settings/values.ts";
import { openStore, parseDatabaseUrl } from "./store/database-url.ts";
import { createLateStore, type LateStore } from "./store/late-store.ts";

/** A server that accepts calls. */
export type RunningServer = Awaited<ReturnType<typeof startServer>>;

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
 * fail with STORE_UNAVAILABLE, and `/readyz` with 503. If it throws, the process has to end.
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
  const { setting, database } = await findDatabase(config);
  const parts = await createParts(config, log, droppedLines);
  const { connections, lateStore, telemetry, authentication, tls } = parts;
  const onWarning = (message: string) => log.warn(message);
  // Before opening the database, which can take long: probes are served meanwhile.
  const { host, port } = config;
  const listener = await listen({ host, ports: port, tls, connections, ...parts.router });
  const opening = openStore(database, {
    requestTimeoutMs: config.requestTimeout,
    observe: telemetry.observeStore,
    onWritable: telemetry.noteWritable,
    onWalSize: telemetry.showWalSize,
    onWarning,
    onNew: (path) => log.info(`made ${path}, a new file without records`),
    async onFatal(error) {
      // The store has failed calls in flight with an unknown outcome: lets their replies leave
      // the process, which can be later than their `finish` event.
      await delay(flushMs);
      onFatal(error);
    },
  });
  const store = await opening.catch((error) => {
    throw error instanceof ConfigError ? new ConfigError(`${setting} is ${error.message}`) : error;
  });
  await lateStore.set(store);
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
    stop: () => stop(parts, listener.close, config),
  };
}

/** The database of the settings, and how these name it. */
async function findDatabase({ database, databaseUrlFile: file }: Config) {
  if (file === undefined) return { setting: "--database-url", database };
  const setting = `--database-url-file ${file}`;
  const url = String(await readSettingFile("--database-url-file", file)).trim();
  return { setting, database: parseDatabaseUrl(`${setting}: its URL`, url) };
}

type Parts = Awaited<ReturnType<typeof createParts>>;

/** Creates all that a server consists of, but for its ports and its database. */
async function createParts(config: Config, log: Logger, droppedLines: () => number) {
  const { host, corsOrigin: corsOrigins = [] } = config;
  const onWarning = (message: string) => log.warn(message);
  const telemetry = createTelemetry(log, config.logCalls === "true");
  const connections = createConnections({
    max: config.maxConnections,
    maxAgeMs: config.maxConnectionAge,
    onEnd: telemetry.noteEnd,
  });
  const tls = await readTls(config, onWarning, connections.distrustCertificates);
  const authentication = await createAuthentication(config, onWarning);
  telemetry.show(
    "investor_records_log_lines_dropped_total",
    "Lines of the log that were dropped, since nobody read it or the disk was full.",
    droppedLines,
  );
  if (tls) {
    telemetry.show(
      "investor_records_tls_certificate_expiry_timestamp_seconds",
      "When the certificate of the server expires, in seconds since 1970.",
      () => tls.expiresAt().getTime() / 1_000,
    );
  }
  let startSpan = createTracing();
  let stopTraces = async () => {};
  if (!startSpan && areSpansExported(process.env)) {
    const { startTraceExport } = await import("./calls/trace-export.ts");
    stopTraces = startTraceExport(log);
    startSpan = createTracing();
  }
  const gate = createGate({
    maxInFlight: config.maxInFlight,
    requestTimeoutMs: config.requestTimeout,
    authenticate: authentication?.authenticate,
    telemetry,
    logFault: telemetry.logFault,
    startSpan,
  });
  const hosts = !authentication && isLoopback(host) ? hostsOf(host) : undefined;
  const lateStore = createLateStore(log);
  const router = createServices(lateStore, { gate, telemetry, corsOrigins, hosts });
  return { tls, authentication, telemetry, connections, gate, lateStore, router, stopTraces };
}

/** Creates what the ports serve. */
function createServices(
  { store, isReady }: LateStore,
  options: Omit<RouterOptions, "services" | "publicServices">,
) {
  const { gate, telemetry, hosts } = options;
  const investorService = createInvestorService(store);
  const investors = createServiceImplSpec<typeof InvestorService>(InvestorService, investorService);
  telemetry.show(
    "investor_records_ready",
    "Whether the service can read records (1) or not (0); same as /readyz.",
    () => Number(isReady()),
  );
  const health = createHealth([InvestorService.typeName], isReady);
  const reflection = createReflection();
  const publicServices = [
    createServiceImplSpec<typeof Health>(Health, health),
    createServiceImplSpec<typeof ServerReflection>(ServerReflection, reflection),
    // Its messages differ only in their names.
    createServiceImplSpec<typeof ServerReflection>(ServerReflectionAlpha, reflection),
  ];
  return createRouter({ ...options, services: [investors], publicServices }, [
    createProbesAndMetrics(isReady, gate, telemetry, hosts !== undefined),
    createRest(investors, gate),
  ]);
}

async function stop(
  { connections, gate, lateStore, stopTraces }: Parts,
  closePorts: () => void,
  { drainDelay, drainTimeout }: Config,
): Promise<string | undefined> {
  lateStore.stopChecks();
  connections.closeAfterReplies();
  await delay(Math.max(drainDelay, minDrainDelayMs));
  closePorts();
  connections.retire();
  let lastCallAt = performance.now();
  const end = lastCallAt + drainTimeout + flushMs;
  const isDone = () => {
    if (gate.inFlight > 0) lastCallAt = performance.now();
    if (connections.isEmpty) return gate.inFlight === 0;
    // A request, or the last bytes of a reply, may be on the network.
    return performance.now() - lastCallAt > flushMs && !connections.mayBeReading;
  };
  while (!isDone() && performance.now() < end) await delay(10);
  const unfinished = gate.inFlight === 0 ? [] : ["cut calls in flight"];
  connections.destroy();
  const closeStore = lateStore.store.close().catch((error: Error) => {
    unfinished.push(error.message);
  });
  const closed = Promise.all([closeStore, stopTraces()]);
  const timeUp = delay(closeMs, "time is up" as const, { ref: false });
  if ((await Promise.race([closed, timeUp])) === "time is up") {
    unfinished.push("could not close the database in time");
  }
  return unfinished.join(", and ") || undefined;
}
