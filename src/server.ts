import { setTimeout as delay } from "node:timers/promises";
import { createServiceImplSpec } from "@connectrpc/connect";
import type { Logger } from "pino";
import { file_google_rpc_error_details } from "../gen/google/rpc/error_details_pb.js";
import { file_google_rpc_status } from "../gen/google/rpc/status_pb.js";
import { InvestorService } from "../gen/investor/v1/investor_pb.js";
import { createDeadlineInterceptor } from "./calls/deadline.ts";
import { createFailureInterceptor } from "./calls/failure.ts";
import { createGate } from "./calls/gate.ts";
import type { Config } from "./config.ts";
import { createInvestorService } from "./service/investors.ts";
import { openStore } from "./store/open.ts";
import type { Store } from "./store/store.ts";
import { startGrpcServer } from "./transports/grpc.ts";

/** A server that takes calls. */
export interface RunningServer {
  readonly grpcPort: number;
  /**
   * Stops in order: tells health checks, waits the drain delay, takes no new calls, lets
   * those inside finish, closes the store. The signal makes it cut what is left at once.
   *
   * @returns whether every call that was inside has finished
   */
  stop(cut?: AbortSignal): Promise<boolean>;
}

/** The largest request in bytes; the largest valid one takes some 9 KiB. */
const maxMessageBytes = 64 * 1024;

/** How often health asks the store, in milliseconds. */
const pingIntervalMs = 1_000;

/** For how long answers that have left may take to reach the sockets, in milliseconds. */
const flushMs = 200;

/**
 * Opens the store and serves it until stopped.
 *
 * @param onFatal called once if the server can go on no more and the process has to end
 * @throws {Error} in plain words, if the store cannot be used or the port not be listened on
 */
export async function startServer(
  config: Config,
  log: Logger,
  onFatal: (error: Error) => void,
): Promise<RunningServer> {
  const gate = createGate(config);
  const store = await openStore(config.databaseUrl, async (error) => {
    // The calls inside learn first that their outcome is unknown.
    await Promise.race([gate.whenEmpty(), delay(flushMs)]);
    onFatal(error);
  });
  const grpc = await startGrpcServer({
    services: [
      createServiceImplSpec<typeof InvestorService>(InvestorService, createInvestorService(store)),
    ],
    reflectedFiles: [file_google_rpc_status, file_google_rpc_error_details],
    // The last one is the outermost.
    interceptors: [
      createDeadlineInterceptor(config.requestTimeoutMs),
      createFailureInterceptor(log),
    ],
    gate,
    host: config.host,
    port: config.grpcPort,
    maxMessageBytes,
    requestTimeoutMs: config.requestTimeoutMs,
    maxConnectionAgeMs: config.maxConnectionAgeMs,
  }).catch(async (error) => {
    await store.close();
    throw error;
  });
  const stopFollowing = await followStore(store, log, grpc.setServing);

  return {
    grpcPort: grpc.port,
    async stop(cut = new AbortController().signal) {
      stopFollowing();
      grpc.setServing(false);
      await pause(config.drainDelayMs, cut);
      const drained = grpc.drain();
      await Promise.race([gate.whenEmpty(), pause(config.drainTimeoutMs, cut)]);
      const isClean = gate.inFlight === 0;
      // What holds a connection open now is a watch, a reflection stream or silence.
      if (isClean) await Promise.race([drained, pause(flushMs, cut)]);
      grpc.destroy();
      const closed = store.close();
      // A store that is stuck with calls that were cut is not waited for.
      await (isClean ? closed : Promise.race([closed, pause(flushMs, cut)]));
      return isClean;
    },
  };
}

/** Asks the store at intervals whether it can serve, and tells when the answer changes. */
async function followStore(store: Store, log: Logger, setServing: (isServing: boolean) => void) {
  let wasServing: boolean | undefined;
  let stopped = false;
  let timer: NodeJS.Timeout | undefined;

  async function ask(): Promise<void> {
    let failure: unknown;
    const isServing = await store.ping(AbortSignal.timeout(pingIntervalMs)).then(
      () => true,
      (error) => {
        failure = error;
        return false;
      },
    );
    if (stopped) return;
    if (isServing !== wasServing) {
      setServing(isServing);
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
