import { setTimeout as delay } from "node:timers/promises";
import { aborted } from "node:util";
import { createServiceImplSpec } from "@connectrpc/connect";
import type { Logger } from "pino";
import { file_google_rpc_error_details } from "../gen/google/rpc/error_details_pb.js";
import { file_google_rpc_status } from "../gen/google/rpc/status_pb.js";
import { InvestorService } from "../gen/investor/v1/investor_pb.js";
import { createAuthentication } from "./calls/authentication.ts";
import { createGate } from "./calls/gate.ts";
import { createTelemetry } from "./calls/telemetry.ts";
import { type Config, isLoopback } from "./config.ts";
import { createInvestorService } from "./service/investors.ts";
import { openStore } from "./store/open.ts";
import type { Store } from "./store/store.ts";
import { createConnectHandler } from "./transports/connect.ts";
import { type GrpcServer, startGrpcServer } from "./transports/grpc.ts";
import { type HttpServer, startHttpServer } from "./transports/http.ts";
import { createOperationsHandler } from "./transports/operations.ts";
import { createRestHandler } from "./transports/rest.ts";
import { readTls } from "./transports/tls.ts";

/** A server that takes calls. */
export interface RunningServer {
  readonly grpcPort: number;
  readonly httpPort: number;
  /**
   * Reads the certificates and tokens again, without dropping a call. What cannot be used
   * stays as it was.
   *
   * @returns what could not be used
   */
  reload(): Promise<Error[]>;
  /**
   * Stops in order: tells health checks, waits the drain delay, takes no new calls, lets
   * those inside finish, closes the store. The signal makes it cut what is left at once.
   *
   * @returns whether every call that was inside has finished, and whether the store is closed,
   *   which it may not be if the signal aborted
   */
  stop(cut?: AbortSignal): Promise<{ isClean: boolean; isClosed: boolean }>;
}

/** The largest request in bytes; the largest valid one takes some 9 KiB. */
const maxMessageBytes = 64 * 1024;

/** How often health asks the store, in milliseconds. */
const pingIntervalMs = 1_000;

/** Timeout of that, in milliseconds. */
const pingTimeoutMs = 5_000;

/** The time that replies get to reach the sockets, in milliseconds. */
const flushMs = 200;

/**
 * Opens the store and serves it until stopped.
 *
 * @param onFatal called once if the server can go on no more and the process has to end
 * @throws {ConfigError} a file that the settings name cannot be read or used
 * @throws {Error} in plain words, if the store cannot be used or the port not be listened on
 */
export async function startServer(
  config: Config,
  log: Logger,
  onFatal: (error: Error) => void,
): Promise<RunningServer> {
  const { databaseUrl, listen, corsOrigins, limits, drain } = config;
  const { host } = listen;
  const { requestTimeoutMs } = limits;
  const tls = config.tls && (await readTls(config.tls));
  const authentication =
    config.authentication && (await createAuthentication(config.authentication));
  const telemetry = createTelemetry(log);
  const { maxInFlight } = limits;
  const authenticate = authentication?.authenticate;
  const gate = createGate({ maxInFlight, requestTimeoutMs, authenticate, telemetry, log });
  telemetry.showInFlight(() => gate.inFlight);
  const store = await openStore(databaseUrl, {
    requestTimeoutMs,
    observe: telemetry.storeObserver,
    onWrite: telemetry.showWritable,
    onWarning: (message) => log.warn(message),
    async onFatal(error) {
      // The calls inside learn first that their outcome is unknown.
      await Promise.race([gate.whenEmpty(), delay(flushMs)]);
      onFatal(error);
    },
  });
  const service = createServiceImplSpec<typeof InvestorService>(
    InvestorService,
    createInvestorService(store),
  );
  const common = { gate, maxMessageBytes, log };
  let isReady = false;
  let grpc: GrpcServer;
  let http: HttpServer;
  try {
    grpc = await startGrpcServer({
      ...common,
      tls,
      host,
      port: listen.grpcPort,
      requestTimeoutMs,
      maxConnectionAgeMs: limits.maxConnectionAgeMs,
      services: [service],
      reflectedFiles: [file_google_rpc_status, file_google_rpc_error_details],
    });
    http = await startHttpServer({
      log,
      tls,
      host,
      port: listen.httpPort,
      requestTimeoutMs,
      corsOrigins,
      refusesCrossOrigin: !authentication && isLoopback(host),
      handlers: [
        createOperationsHandler({ isReady: () => isReady, gate, telemetry }),
        createConnectHandler({ ...common, services: [service] }),
        createRestHandler({ ...common, service }),
      ],
    }).catch((error) => {
      grpc.destroy();
      throw error;
    });
  } catch (error) {
    await store.close();
    throw error;
  }
  const setReady = (value: boolean) => {
    isReady = value;
    grpc.setServing(value);
  };
  const stopFollowing = await followStore(store, log, setReady);

  return {
    grpcPort: grpc.port,
    httpPort: http.port,
    async reload() {
      const reloads = await Promise.allSettled([authentication?.reload(), tls?.reload()]);
      return reloads.flatMap((each) => (each.status === "rejected" ? [each.reason] : []));
    },
    async stop(cut = new AbortController().signal) {
      stopFollowing();
      setReady(false);
      await pause(drain.delayMs, cut);
      const drained = Promise.all([grpc.drain(), http.drain()]);
      await Promise.race([gate.whenEmpty(), pause(drain.timeoutMs, cut)]);
      const isClean = gate.inFlight === 0;
      // What holds a connection open now is a watch, a reflection stream or silence.
      if (isClean) await Promise.race([drained, pause(flushMs, cut)]);
      grpc.destroy();
      http.destroy();
      let isClosed = false;
      const closed = store.close(cut).then(() => {
        isClosed = true;
      });
      await Promise.race([closed, aborted(cut, cut)]);
      if (!isClosed) await Promise.race([closed, delay(flushMs)]);
      return { isClean, isClosed };
    },
  };
}

/** Asks the store at intervals whether it can serve, and tells when the answer changes. */
async function followStore(store: Store, log: Logger, setReady: (isReady: boolean) => void) {
  let wasServing: boolean | undefined;
  let stopped = false;
  let timer: NodeJS.Timeout | undefined;

  async function ask(): Promise<void> {
    let failure: unknown;
    const isServing = await store.ping(AbortSignal.timeout(pingTimeoutMs)).then(
      () => true,
      (error) => {
        failure = error;
        return false;
      },
    );
    if (stopped) return;
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
