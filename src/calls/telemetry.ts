import type { DescMethod } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { codeToString } from "@connectrpc/connect/protocol-connect";
import type { Logger } from "pino";
import { collectDefaultMetrics, Gauge, Histogram, Registry } from "prom-client";
import { ErrorInfoSchema } from "../../gen/google/rpc/error_details_pb.js";
import { readBuild } from "../build.ts";
import type { StoreObserver } from "../store/store.ts";
import type { Call } from "./call.ts";

/** Tells those who run the service what happens in it: by lines of the log, and by metrics. */
export interface Telemetry {
  /** Follows a call from now until its reply was sent. */
  follow(call: Call): void;
  /** Takes what a store tells of its work. */
  readonly storeObserver: StoreObserver;
  /** Shows whether the store can write. */
  showWritable(isWritable: boolean): void;
  /** Shows how many calls are inside. */
  showInFlight(count: () => number): void;
  /** All metrics in the text format of Prometheus. */
  metrics(): Promise<string>;
  /** The media type of that. */
  readonly metricsType: string;
}

/** Upper bounds in seconds: a read from memory up to the longest call. */
const durations = [
  0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30,
];

const batchSizes = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/** Makes the telemetry of a server, which writes to a log. */
export function createTelemetry(log: Logger): Telemetry {
  const registry = new Registry();
  const registers = [registry];
  collectDefaultMetrics({ register: registry });
  const { version, gitHead = "" } = readBuild();
  new Gauge({
    name: "build_info",
    help: "Always 1; its labels tell what is running.",
    labelNames: ["version", "revision", "node"],
    registers,
  }).set({ version, revision: gitHead, node: process.versions.node }, 1);
  const callDurations = new Histogram({
    name: "rpc_server_call_duration_seconds",
    help: "Time from the headers of a call until its reply was sent.",
    buckets: durations,
    labelNames: ["method", "code", "transport"],
    registers,
  });
  const storeDurations = new Histogram({
    name: "store_operation_duration_seconds",
    help: "Time that the database takes for one operation, which can be a batch.",
    buckets: durations,
    labelNames: ["operation"],
    registers,
  });
  const storeBatches = new Histogram({
    name: "store_batch_size",
    help: "How many calls share one operation of the database.",
    buckets: batchSizes,
    labelNames: ["operation"],
    registers,
  });
  let storeWritable: Gauge | undefined;

  function report(call: Call, seconds: number): void {
    const { transport } = call.head;
    const method = nameOf(call.method);
    const code = codeOf(call);
    callDurations.observe({ method, code, transport }, seconds);
    const level = code === "OK" ? "debug" : "warn";
    if (!log.isLevelEnabled(level)) return;
    const reason = call.failure?.findDetails(ErrorInfoSchema)[0]?.reason;
    const durationMs = Math.round(seconds * 1e6) / 1e3;
    const { peer } = call.connection;
    log[level](
      { method, transport, code, reason, durationMs, peer, traceId: call.id },
      code === "OK" ? "call" : "call failed",
    );
  }

  return {
    follow(call) {
      const start = performance.now();
      call.onClose(() => report(call, (performance.now() - start) / 1_000));
    },
    storeObserver(operation, seconds, batchSize) {
      storeDurations.observe({ operation }, seconds);
      if (batchSize !== undefined) storeBatches.observe({ operation }, batchSize);
    },
    showWritable(isWritable) {
      storeWritable ??= new Gauge({
        name: "store_writable",
        help: "Whether the file of SQLite took the last batch (1) or refused it (0).",
        registers,
      });
      storeWritable.set(isWritable ? 1 : 0);
    },
    showInFlight(count) {
      new Gauge({
        name: "rpc_server_calls_in_flight",
        help: "Calls that are inside.",
        registers,
        collect() {
          this.set(count());
        },
      });
    },
    metrics: () => registry.metrics(),
    metricsType: registry.contentType,
  };
}

function nameOf({ parent, name }: DescMethod): string {
  return `${parent.typeName}/${name}`;
}

/** The code of a call by its name in gRPC (https://grpc.io/docs/guides/status-codes). */
function codeOf({ failure, head }: Call): string {
  if (failure === undefined && head.exchange.wasSent) return "OK";
  const code = failure?.code ?? Code.Canceled;
  return code === Code.Canceled ? "CANCELLED" : codeToString(code).toUpperCase();
}
