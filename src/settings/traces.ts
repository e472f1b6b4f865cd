/**
 * The variables about traces that have no effect here, from
 * https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables.
 */
const ignored =
  /^OTEL_((EXPERIMENTAL_)?CONFIG_FILE|ENTITIES|(EVENT|LINK)_ATTRIBUTE_COUNT_LIMIT|EXPORTER_(ZIPKIN|JAEGER)_\w+|EXPORTER_OTLP_(TRACES_|SPAN_)?INSECURE)$/;

/**
 * Reads OpenTelemetry's variables about spans; no value of theirs prevents startup.
 *
 * @returns whether spans are exported (the SDK reads where and how), and warnings of variables without effect
 */
export function readTraceSettings(env: NodeJS.ProcessEnv) {
  const namesOf = (what: string) => [
    `OTEL_EXPORTER_OTLP_TRACES_${what}`,
    `OTEL_EXPORTER_OTLP_${what}`,
  ];
  const [endpoint, protocol] = ["ENDPOINT", "PROTOCOL"].map((what) =>
    namesOf(what).find((name) => env[name]),
  );
  const asked = env.OTEL_TRACES_EXPORTER || (endpoint ? "otlp" : "none");
  const exporters = new Set(namesIn(asked));
  if (env.OTEL_SDK_DISABLED?.toLowerCase() === "true") exporters.clear();
  const warnings = [...exporters]
    .filter((name) => name !== "otlp" && name !== "none")
    .map((name) => `OTEL_TRACES_EXPORTER: ${name} is not supported; otlp and none are`);
  if (!exporters.has("otlp")) return { areExported: false, warnings };

  const url = URL.parse((endpoint && env[endpoint]) || "http://localhost:4318");
  // "collector:4318" is a URL too, with the scheme "collector".
  if (url?.protocol !== "http:" && url?.protocol !== "https:") {
    warnings.push(`${endpoint} must be an http or https URL: no spans are exported`);
    return { areExported: false, warnings };
  }
  if (url.port === "4317") {
    warnings.push(`${endpoint} has port 4317, usually that of gRPC: 4318 is that of HTTP`);
  }
  if (protocol && env[protocol] !== "http/protobuf") {
    warnings.push(`${protocol} has no effect: spans are exported by http/protobuf`);
  }
  const propagators = namesIn(env.OTEL_PROPAGATORS || "tracecontext");
  // Baggage makes no difference: the service calls no other that it would be passed to.
  const isOther = (name: string) => !["tracecontext", "baggage"].includes(name);
  if (!propagators.includes("tracecontext") || propagators.some(isOther)) {
    warnings.push("OTEL_PROPAGATORS has no effect: the propagator is tracecontext");
  }
  const names = Object.keys(env).filter((name) => ignored.test(name) && env[name]);
  if (names.length > 0) warnings.push(`these have no effect on traces: ${names.join(", ")}`);
  return { areExported: true, warnings };
}

function namesIn(list: string): string[] {
  return list.split(",").map((name) => name.trim());
}
