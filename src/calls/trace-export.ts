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
  // Only while the variables are read: later the SDK would repeat a warning for each batch.
  diag.setLogger({ error: warn, warn, info: ignore, debug: ignore, verbose: ignore });
  const exporter = new OTLPTraceExporter();
  let isFailing = false;
  const observed: ConstructorParameters<typeof BatchSpanProcessor>[0] = {
    export(spans, done) {
      exporter.export(spans, (result) => {
        const { error } = result;
        // An error for several addresses has no message.
        const cause = error && ("code" in error ? `${error.message} ${error.code}` : error.message);
        if (error && !isFailing) warn(`spans cannot be exported: ${cause}`);
        if (!error && isFailing) log.info("traces: spans are exported again");
        isFailing = error !== undefined;
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
  trace.setGlobalTracerProvider(provider);
  propagation.setGlobalPropagator(new W3CTraceContextPropagator());
  return async () => {
    const timeUp = delay(shutdownTimeoutMs, undefined, { ref: false });
    await Promise.race([provider.shutdown().catch(ignore), timeUp]);
  };
}
