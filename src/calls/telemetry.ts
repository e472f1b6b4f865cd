import type { Level, Logger } from "pino";
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from "prom-client";
import { InvalidCredentialsError } from "../auth/caller.ts";
import { Failure, type Reason } from "../failures.ts";
import type { EndReason } from "../http/connection.ts";
import { createBoundedLines, type LogLine } from "../log.ts";
import { touchedKey } from "../service/context.ts";
import { OutcomeUnknownError, type StoreObserver, StoreUnavailableError } from "../store/store.ts";
import { readBuild } from "../version.ts";
import type { Call } from "./call.ts";
import { methodNameOf } from "./call-head.ts";

/** The logging of calls and the metrics, for operators. */
export type Telemetry = ReturnType<typeof createTelemetry>;

/** Reasons for which the gate rejects calls, which can come in floods. */
const refusals = new Set<string>([
  "CREDENTIALS_MISSING",
  "CREDENTIALS_INVALID",
  "SCOPE_MISSING",
  "ISSUER_UNAVAILABLE",
  "OVERLOADED",
] satisfies Reason[]);

type Refusal = { readonly reason: string | undefined } & Record<string, unknown>;

/** Creates that fail for this reason surely stored nothing. */
const notStored: Reason = "STORE_UNAVAILABLE";

/** Bucket bounds, in seconds: from a read from memory to the longest call. */
const durations = [
  0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30,
];

/** @param logCalls logs calls at info if they succeeded, or have read or created a record */
export function createTelemetry(log: Logger, logCalls: boolean) {
  const registry = new Registry();
  const registers = [registry];
  collectDefaultMetrics({ register: registry });
  // Names in _total are for counters, and these are sums of other metrics.
  for (const what of ["handles", "requests", "resources"]) {
    registry.removeSingleMetric(`nodejs_active_${what}_total`);
  }
  const counter = (name: string, help: string, ...labelNames: string[]) =>
    new Counter({ name, help, labelNames, registers });
  const gauge = (name: string, help: string, ...labelNames: string[]) =>
    new Gauge({ name, help, labelNames, registers });
  const histogram = (name: string, help: string, labelNames: string[], buckets = durations) =>
    new Histogram({ name, help, labelNames, buckets, registers });
  const { version, commit } = readBuild();
  const about = "Always 1; its labels tell what is running.";
  gauge("investor_records_build_info", about, "version", "revision", "node")
    .labels(version, commit, process.versions.node)
    .set(1);
  const callDurations = histogram(
    "investor_records_rpc_server_call_duration_seconds",
    "Time from the headers of a call until its reply was sent.",
    ["method", "code", "transport"],
  );
  const storeDurations = histogram(
    "investor_records_store_operation_duration_seconds",
    "Time that the database takes for one operation, which can be a batch.",
    ["operation"],
  );
  const storeBatches = histogram(
    "investor_records_store_batch_size",
    "How many calls share one operation of the database.",
    ["operation"],
    [1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
  );
  const unlogged = counter(
    "investor_records_refusals_unlogged_total",
    "Refusals that were not logged, since there were too many, or by the log level.",
    "reason",
  );
  const overloads = counter(
    "investor_records_overloaded_total",
    "Calls that were refused as OVERLOADED, by the limit that they met.",
    "limit",
  );
  const ended = counter(
    "investor_records_connections_closed_total",
    "Connections that were closed before their clients closed them.",
    "reason",
  );
  // Starts at zero, so that the first refusal shows as an increase.
  for (const reason of [...refusals, "CROSS_ORIGIN"]) unlogged.inc({ reason }, 0);
  overloads.inc({ limit: "calls in flight" }, 0);
  // Separate, so that refusals of unauthenticated callers do not crowd out those of known ones.
  const logUnauthenticated = createBoundedLines(log, "were refused");
  const logAuthenticated = createBoundedLines(log, "were refused");
  const logInternal = createBoundedLines(log, "were internal errors");
  const logEnded = createBoundedLines(log, "connections were closed");
  const failed = new Map<string, LogLine>();
  const help =
    "The last create: 1 if the database took it, or none was made yet; 0 if it refused it.";
  const storeWritable = gauge("investor_records_store_writable", help);
  storeWritable.set(1);
  /** Why the database has refused creates lately, as logged. */
  const refusalCauses = new Set<string>();
  let areCreatesRefused = false;
  // Created once the database has reported a value.
  let walSize: Gauge | undefined;

  /** Logs a refusal, or counts it if the log drops it. */
  function logRefusal(log: LogLine, fields: Refusal): void {
    if (!log("warn", fields, "refused")) unlogged.inc({ reason: fields.reason ?? "" });
  }

  /** Counts an overload, and returns the limit; undefined for other failures. */
  function countOverload(failure: Failure | undefined): string | undefined {
    const limit = failure?.metadata.limit;
    if (limit !== undefined) overloads.inc({ limit });
    return limit;
  }

  /** The bounded log lines of calls that failed with a code: separate, so that no code crowds out another. */
  function logFailed(code: string): LogLine {
    const known = failed.get(code) ?? createBoundedLines(log, `failed with ${code}`);
    failed.set(code, known);
    return known;
  }

  function report(call: Call): void {
    const elapsedMs = performance.now() - call.startedAt;
    const { code, failure, head } = call;
    const { transport, connection, isPublic } = head;
    const method = methodNameOf(head.method);
    const limit = countOverload(failure);
    if (!isPublic) callDurations.observe({ method, code, transport }, elapsedMs / 1_000);
    else if (limit === undefined) return;
    const touched = call.values.get(touchedKey);
    const defaultLevel = levelOf(call);
    // A client that left early may still have got what was read for it.
    const isAudited =
      logCalls && defaultLevel === "debug" && (code === "OK" || touched !== undefined);
    const level = isAudited ? "info" : defaultLevel;
    const reason = failure?.reason;
    const isRefusal = refusals.has(reason ?? "");
    // Refusals are counted even if not logged.
    if (!isRefusal && !log.isLevelEnabled(level)) return;
    const principal = call.caller?.name;
    const line = {
      method,
      transport,
      code,
      reason,
      durationMs: Math.round(elapsedMs * 1e3) / 1e3,
      peer: connection.peer.address,
      principal,
      ...touched,
      traceId: call.id,
      cause: causeOf(failure),
      limit,
    };
    // Records that may have been stored are always logged, however many other calls fail.
    const isOutcome = logCalls && touched?.attempted !== undefined && reason !== notStored;
    if (isRefusal)
      logRefusal(principal === undefined ? logUnauthenticated : logAuthenticated, line);
    else if (defaultLevel === "debug" || isOutcome)
      log[level](line, code === "OK" ? "call" : "call failed");
    else logFailed(code)(level, line, "call failed");
  }

  return {
    /** Counts and logs a call once its reply has been sent or abandoned; a public one only if overloaded. */
    observe: (call: Call) => call.onClose(() => report(call)),
    /** Logs a request that was rejected before it became a call, unless there is a flood of them. */
    logRefusal: (fields: Refusal) => logRefusal(logUnauthenticated, fields),
    /** Logs a fault under the id that its caller gets, unless there is a flood of them. */
    logFault(error: unknown, id: string): void {
      logInternal("error", { err: error, traceId: id }, "internal error");
    },
    /** Counts a connection that the server ended, and logs it unless there is a flood of them. */
    noteEnd(reason: EndReason, peer: string, cause?: string): void {
      ended.inc({ reason });
      // Connections of some well-behaved clients end like this too.
      const level = reason === "http2_idle_error" ? "debug" : "warn";
      logEnded(level, { reason, peer, cause }, "connection closed");
    },
    /** Counts and logs the failure of a request that is not a call, if it is a refusal. */
    noteRefusal(peer: string, error: unknown): void {
      if (!(error instanceof Failure) || !refusals.has(error.reason ?? "")) return;
      const { reason } = error;
      const limit = countOverload(error);
      logRefusal(logUnauthenticated, { peer, reason, cause: causeOf(error), limit });
    },
    observeStore(...[operation, durationMs, batchSize]: Parameters<StoreObserver>): void {
      storeDurations.observe({ operation }, durationMs / 1_000);
      if (batchSize !== undefined) storeBatches.observe({ operation }, batchSize);
    },
    /** Shows whether the database took the last create, and logs each cause of refusals once a minute. */
    noteWritable(refusal?: Error): void {
      storeWritable.set(refusal ? 0 : 1);
      if (refusal && !refusalCauses.has(refusal.message)) {
        if (refusalCauses.size === 0) setTimeout(() => refusalCauses.clear(), 60_000).unref();
        refusalCauses.add(refusal.message);
        areCreatesRefused = true;
        log.error({ cause: refusal.message }, "the database refuses creates");
      } else if (!refusal && areCreatesRefused) {
        areCreatesRefused = false;
        log.info("the database takes creates again");
      }
    },
    showWalSize(bytes: number): void {
      walSize ??= gauge(
        "investor_records_sqlite_log_bytes",
        "Size of the SQLite file's WAL (-wal).",
      );
      walSize.set(bytes);
    },
    /** Shows a value that is computed on each scrape; if the name ends in _total, as a counter. */
    show(name: string, help: string, value: () => number): void {
      const Kind = name.endsWith("_total") ? Counter : Gauge;
      new Kind({
        name,
        help,
        registers,
        collect(this: Counter | Gauge) {
          this.reset();
          this.inc(value());
        },
      });
    },
    /** All metrics in Prometheus's text format. */
    metrics: () => registry.metrics(),
    metricsType: registry.contentType,
  };
}

/** The cause if it comes from the store or from invalid credentials. Others may contain data of the request. */
function causeOf({ cause }: Partial<Failure> = {}): string | undefined {
  const safe = [StoreUnavailableError, OutcomeUnknownError, InvalidCredentialsError];
  return safe.some((each) => cause instanceof each) ? (cause as Error).message : undefined;
}

/** Log levels of calls, by code: faults matter to operators, clients' mistakes do not. */
const levels: Record<string, Level> = {
  INTERNAL: "error",
  UNKNOWN: "error",
  DEADLINE_EXCEEDED: "warn",
  UNAVAILABLE: "warn",
  UNAUTHENTICATED: "warn",
  PERMISSION_DENIED: "warn",
};

function levelOf({ code, isDeadlineOfClient }: Call): Level {
  if (code === "DEADLINE_EXCEEDED" && isDeadlineOfClient) return "debug";
  return levels[code] ?? "debug";
}
