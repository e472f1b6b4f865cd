import { ConnectError } from "@connectrpc/connect";
import type { Level, Logger } from "pino";
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from "prom-client";
import { InvalidCredentialsError } from "../auth/caller.ts";
import { limitOf, type Reason, reasonOf } from "../errors.ts";
import type { EndReason } from "../http/connection.ts";
import { createBoundedLines, type LogLine } from "../log.ts";
import { touchedKey } from "../service/context.ts";
import { OutcomeUnknownError, type StoreObserver, StoreUnavailableError } from "../store/store.ts";
import { readBuild } from "../version.ts";
import type { Call } from "./call.ts";
import { methodNameOf } from "./call-head.ts";
import { LimitError } from "./slots.ts";

/** The logging of calls and the metrics, for operators. */
export type Telemetry = ReturnType<typeof createTelemetry>;

/** Reasons for which the gate refuses calls, which can come in floods. */
const refusals = new Set<string>([
  "CREDENTIALS_MISSING",
  "CREDENTIALS_INVALID",
  "SCOPE_MISSING",
  "ISSUER_UNAVAILABLE",
  "OVERLOADED",
] satisfies Reason[]);

/** What the log has of a refusal. */
type Refusal = { readonly reason: string | undefined } & Record<string, unknown>;

/** The reason of calls that surely stored nothing. */
const notStored: Reason = "STORE_UNAVAILABLE";

/** Upper bounds in seconds: a read from memory up to the longest call. */
const durations = [
  0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30,
];

/**
 * Creates the telemetry of a server.
 *
 * @param logCalls logs calls at info that succeed, or have read or created a record
 */
export function createTelemetry(log: Logger, logCalls: boolean) {
  const registry = new Registry();
  const registers = [registry];
  collectDefaultMetrics({ register: registry });
  // Names in _total are those of counters, and these are sums of other metrics.
  for (const what of ["handles", "requests", "resources"]) {
    registry.removeSingleMetric(`nodejs_active_${what}_total`);
  }
  const { version, commit } = readBuild();
  new Gauge({
    name: "investor_records_build_info",
    help: "Always 1; its labels tell what is running.",
    labelNames: ["version", "revision", "node"],
    registers,
  }).set({ version, revision: commit, node: process.versions.node }, 1);
  const callDurations = new Histogram({
    name: "investor_records_rpc_server_call_duration_seconds",
    help: "Time from the headers of a call until its reply was sent.",
    buckets: durations,
    labelNames: ["method", "code", "transport"],
    registers,
  });
  const storeDurations = new Histogram({
    name: "investor_records_store_operation_duration_seconds",
    help: "Time that the database takes for one operation, which can be a batch.",
    buckets: durations,
    labelNames: ["operation"],
    registers,
  });
  const storeBatches = new Histogram({
    name: "investor_records_store_batch_size",
    help: "How many calls share one operation of the database.",
    buckets: [1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
    labelNames: ["operation"],
    registers,
  });
  const unlogged = new Counter({
    name: "investor_records_refusals_unlogged_total",
    help: "Refusals that have no line of their own in the log, for their number or its level.",
    labelNames: ["reason"],
    registers,
  });
  const overloads = new Counter({
    name: "investor_records_overloaded_total",
    help: "Calls that were refused as OVERLOADED, by the limit that they met.",
    labelNames: ["limit"],
    registers,
  });
  const ended = new Counter({
    name: "investor_records_connections_closed_total",
    help: "Connections that were closed before their clients closed them.",
    labelNames: ["reason"],
    registers,
  });
  const checkpointFailures = new Counter({
    name: "investor_records_sqlite_checkpoint_failures_total",
    help: "How often the WAL of the SQLite file (-wal) could not be brought into the file.",
    registers,
  });
  // So that the first of a kind is seen as an increase.
  for (const reason of [...refusals, "CROSS_ORIGIN"]) unlogged.inc({ reason }, 0);
  overloads.inc({ limit: "calls in flight" }, 0);
  // Apart, so that those of strangers cannot push out those of known callers.
  const logStranger = createBoundedLines(log, "were refused");
  const logKnown = createBoundedLines(log, "were refused");
  const logInternal = createBoundedLines(log, "were internal errors");
  const logEnded = createBoundedLines(log, "connections were closed");
  const failed = new Map<string, LogLine>();
  let areCreatesRefused = false;

  /** Sets a value, which is shown from then on. */
  function set(name: string, help: string, value: number): void {
    const known = registry.getSingleMetric(name) as Gauge | undefined;
    (known ?? new Gauge({ name, help, registers })).set(value);
  }

  /** Shows a value that is asked for when the metrics are. */
  function show(name: string, help: string, value: () => number): void {
    new Gauge({
      name,
      help,
      registers,
      collect() {
        this.set(value());
      },
    });
  }

  /** Logs a refusal, or counts it if it is not logged. */
  function logRefusal(log: LogLine, fields: Refusal): void {
    if (!log("warn", fields, "refused")) unlogged.inc({ reason: fields.reason ?? "" });
  }

  function countOverload(failure: unknown): void {
    const limit = limitOf(failure);
    if (limit !== undefined) overloads.inc({ limit });
  }

  /** Logs calls that failed with a code, each apart, so that none pushes out others. */
  function logFailed(code: string): LogLine {
    const known = failed.get(code) ?? createBoundedLines(log, `failed with ${code}`);
    failed.set(code, known);
    return known;
  }

  function report(call: Call): void {
    const elapsedMs = performance.now() - call.startedAt;
    const { code, head } = call;
    const { transport } = head;
    const method = methodNameOf(head.method);
    callDurations.observe({ method, code, transport }, elapsedMs / 1_000);
    const touched = call.values.get(touchedKey);
    const usual = levelOf(call);
    // A client that leaves before the end may have got what was read for it.
    const isOfAudit = logCalls && usual === "debug" && (code === "OK" || touched !== undefined);
    const level = isOfAudit ? "info" : usual;
    const reason = reasonOf(call.failure);
    const isRefusal = refusals.has(reason ?? "");
    countOverload(call.failure);
    // A refusal is counted if it is not logged.
    if (!isRefusal && !log.isLevelEnabled(level)) return;
    const durationMs = Math.round(elapsedMs * 1e3) / 1e3;
    const { address: peer } = head.connection.peer;
    const principal = call.caller?.name;
    const fields = { method, transport, code, reason, durationMs, peer, principal, ...touched };
    const { failure } = call;
    const line = {
      ...fields,
      traceId: call.id,
      cause: causeOf(failure),
      limit: limitOf(failure),
      // Asked for only if the line is written.
      get mostHeldBy() {
        return failure?.cause instanceof LimitError ? failure.cause.mostHeldBy : undefined;
      },
    };
    // What may have been stored is named, however much else fails.
    const isOutcome = logCalls && touched?.attempted !== undefined && reason !== notStored;
    const write = isOutcome || !isFailure(level) ? undefined : logFailed(code);
    if (isRefusal) logRefusal(principal === undefined ? logStranger : logKnown, line);
    else if (write) write(level, line, "call failed");
    else log[level](line, code === "OK" ? "call" : "call failed");
  }

  return {
    /** Counts and logs a call once its reply was sent, or never will be. */
    follow(call: Call): void {
      call.onClose(() => report(call));
    },
    /** Counts a public call if it was refused for their number. */
    followPublic(call: Call): void {
      call.onClose(() => countOverload(call.failure));
    },
    /** Logs a request that was refused before it was a call; not each in a flood. */
    logRefusal: (fields: Refusal) => logRefusal(logStranger, fields),
    /** Logs a fault under the id that its caller gets; not each in a flood. */
    logFault(error: unknown, id: string): void {
      logInternal("error", { err: error, traceId: id }, "internal error");
    },
    /** Counts and logs a connection that was ended before its client ended it; not each in a flood. */
    noteEnd(reason: EndReason, peer: string, cause?: string): void {
      ended.inc({ reason });
      // So end the connections of some good clients, too.
      const level = reason === "http2_idle_error" ? "debug" : "warn";
      logEnded(level, { reason, peer, cause }, "connection closed");
    },
    /** The same for one that was refused for its credentials. */
    logCredentialRefusal(peer: string, error: unknown): void {
      countOverload(error);
      logRefusal(logStranger, { peer, reason: reasonOf(error), cause: causeOf(error) });
    },
    /** Records an operation of the store. */
    observeStore(...[operation, durationMs, batchSize]: Parameters<StoreObserver>): void {
      storeDurations.observe({ operation }, durationMs / 1_000);
      if (batchSize !== undefined) storeBatches.observe({ operation }, batchSize);
    },
    /** Shows whether creates pass, and logs when that changes, with why the database refuses them. */
    noteWritable(refusal?: Error): void {
      const isRefused = refusal !== undefined;
      const help = "Whether the database takes creates (1) or refuses them (0).";
      set("investor_records_store_writable", help, isRefused ? 0 : 1);
      if (isRefused === areCreatesRefused) return;
      areCreatesRefused = isRefused;
      if (isRefused) log.error({ cause: refusal.message }, "the database refuses creates");
      else log.info("the database takes creates again");
    },
    /** Shows the size of SQLite's WAL, in bytes. */
    showWalSize(bytes: number): void {
      set("investor_records_sqlite_log_bytes", "Size of the SQLite file's WAL (-wal).", bytes);
    },
    /** Counts and logs that the WAL could not be brought into the file; as often as it is tried. */
    noteCheckpointFailure(cause: string): void {
      checkpointFailures.inc();
      log.warn({ cause }, "the WAL cannot be brought into its file, and grows");
    },
    /** Shows how many calls are in flight. */
    showInFlight(count: () => number): void {
      show("investor_records_rpc_server_calls_in_flight", "Calls in flight.", count);
    },
    /** Shows whether the service is ready, as `/readyz` says. */
    showReady(isReady: () => boolean): void {
      const help = "Whether the service can read records (1) or not (0), as /readyz says.";
      show("investor_records_ready", help, () => (isReady() ? 1 : 0));
    },
    /** Shows when the certificate in use expires. */
    showCertificateExpiry(expiry: () => Date): void {
      const help = "When the certificate of the server expires, in seconds since 1970.";
      const name = "investor_records_tls_certificate_expiry_timestamp_seconds";
      show(name, help, () => expiry().getTime() / 1_000);
    },
    /** Shows how many lines the log has dropped so far. */
    showDroppedLines(count: () => number): void {
      new Counter({
        name: "investor_records_log_lines_dropped_total",
        help: "Lines of the log that were dropped, since nobody read it or the disk was full.",
        registers,
        collect() {
          this.reset();
          this.inc(count());
        },
      });
    },
    /** All metrics in the text format of Prometheus. */
    metrics: () => registry.metrics(),
    /** The media type of that. */
    metricsType: registry.contentType,
  };
}

/** What kept the store from a call, or is wrong with credentials. Other causes may hold what was sent. */
function causeOf(failure: unknown): string | undefined {
  const cause = failure instanceof ConnectError ? failure.cause : undefined;
  const safe = [StoreUnavailableError, OutcomeUnknownError, InvalidCredentialsError];
  return safe.some((each) => cause instanceof each) ? (cause as Error).message : undefined;
}

/** The level to log a call at: faults matter to operators, clients' mistakes do not. */
function levelOf({ code, isDeadlineOfClient }: Call): Level {
  switch (code) {
    case "INTERNAL":
    case "UNKNOWN":
      return "error";
    case "DEADLINE_EXCEEDED":
      return isDeadlineOfClient ? "debug" : "warn";
    case "UNAVAILABLE":
    case "UNAUTHENTICATED":
    case "PERMISSION_DENIED":
      return "warn";
    default:
      return "debug";
  }
}

function isFailure(level: Level): boolean {
  return level === "warn" || level === "error";
}
