/**
 * Whether OpenTelemetry's variables ask for an export of spans, by OTLP. The SDK reads the others
 * (https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables).
 */
export function areSpansExported(env: NodeJS.ProcessEnv): boolean {
  const endpoint = env.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT || env.OTEL_EXPORTER_OTLP_ENDPOINT;
  const exporters = env.OTEL_TRACES_EXPORTER || (endpoint ? "otlp" : "none");
  const isDisabled = env.OTEL_SDK_DISABLED?.toLowerCase() === "true";
  return !isDisabled && /(^|,)\s*otlp\s*(,|$)/.test(exporters);
}
