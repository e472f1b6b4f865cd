import { setTimeout as delay } from "node:timers/promises";
import { diag, propagation, trace } from "@opentelemetry/api";
import { W3CTraceContextPropagator } from "@opentelemetry/core";
import { OTLPTraceExporter } from "@opentelemetry/exporter-trace-otlp-proto";
import {
  defaultResource,
  detectResources,
  envDetector,
  resourceFromAttributes,
} from "@opentelemetry/resources";
import { BasicTracerProvider, BatchSpanProcessor } from "@opentelemetry/sdk-trace-base";
import type { Logger } from "pino";
import { readBuild } from "../version.ts";

/** How long exporting the last spans may take, in milliseconds. */
const shutdownTimeoutMs = 1_000;

/**
 * Registers an OpenTelemetry SDK that exports spans by OTLP over HTTP, configured by its
 * environment variables (https://opentelemetry.io/docs/specs/otel/protocol/exporter). Never holds
 * up a call: spans that cannot be exported in time are dropped. Logs when exports start to fail,
 * and when they succeed again.
 *
 * @returns a function that exports the last spans, for at most a second
 */
export function startTraceExport(log: Logger): () => Promise<void> {
  const warn = (message: string) => log.warn(`traces: ${message}`);
  const ignore = () => {};
  const silent = { error: ignore, info: ignore, debug: ignore, verbose: ignore };
  diag.setLogger({ ...silent, error: warn, warn });
  const exporter = new OTLPTraceExporter();
  let isFailing = false;
  /** What the SDK says of a reply to an export that it calls successful. */
  let warning: string | undefined;
  const observed: ConstructorParameters<typeof BatchSpanProcessor>[0] = {
    export(spans, done) {
      exporter.export(spans, (result) => {
        const { error } = result;
        // An error for several addresses has no message.
        const { message, code = "" } = Object(error) as NodeJS.ErrnoException;
        const cause = error ? `${message} ${code}`.trim() : warning;
        warning = undefined;
        if (cause && !isFailing) warn(`spans cannot be exported: ${cause}`);
        if (!cause && isFailing) log.info("traces: spans are exported again");
        isFailing = cause !== undefined;
        done(result);
      });
    },
    shutdown: () => exporter.shutdown(),
  };
  const own = { "service.name": "investor-records", "service.version": readBuild().version };
  const provider = new BasicTracerProvider({
    resource: defaultResource()
      .merge(resourceFromAttributes(own))
      .merge(detectResources({ detectors: [envDetector] })),
    spanProcessors: [new BatchSpanProcessor(observed)],
  });
  diag.disable();
  diag.setLogger({
    ...silent,
    // Without what the collector has replied, if that could not be read.
    warn: (...parts) => {
      warning = parts.filter((part) => typeof part === "string").join(" ");
    },
  });
  trace.setGlobalTracerProvider(provider);
  propagation.setGlobalPropagator(new W3CTraceContextPropagator());
  return async () => {
    const timeUp = delay(shutdownTimeoutMs, undefined, { ref: false });
    await Promise.race([provider.shutdown().catch(ignore), timeUp]);
  };
}
