import type { Socket } from "node:net";
import {
  type Attributes,
  ProxyTracerProvider,
  propagation,
  ROOT_CONTEXT,
  type Span,
  SpanKind,
  SpanStatusCode,
  trace,
} from "@opentelemetry/api";
import { pathOf } from "../http/request.ts";
import { isUuid } from "../investor/ids.ts";
import type { Call, CallOptions } from "./call.ts";
import { type CallHead, type HttpCall, methodNameOf } from "./call-head.ts";

const tracerName = "investor-records";

/** Status codes that count as server faults (https://opentelemetry.io/docs/specs/semconv/rpc/grpc). */
const faults = new Set([
  "UNKNOWN",
  "DEADLINE_EXCEEDED",
  "UNIMPLEMENTED",
  "INTERNAL",
  "UNAVAILABLE",
]);

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

/**
 * Traces calls through the registered OpenTelemetry SDK; undefined if there is none. Each call gets
 * a server span, a child of its caller's: an RPC span
 * (https://opentelemetry.io/docs/specs/semconv/rpc/rpc-spans) or, for REST, an HTTP span
 * (https://opentelemetry.io/docs/specs/semconv/http/http-spans).
 */
export function createTracing(): CallOptions["startSpan"] {
  const provider = trace.getTracerProvider();
  // Without an SDK, this is the API's placeholder.
  if (provider instanceof ProxyTracerProvider && !provider.getDelegateTracer(tracerName)) {
    return undefined;
  }
  const tracer = provider.getTracer(tracerName);
  return (call) => {
    const { http, method, headers, connection } = call.head;
    const { socket } = connection;
    const name = http ? `${http.request.method} ${http.route}` : methodNameOf(method);
    const parent = propagation.extract(ROOT_CONTEXT, headers);
    const attributes = {
      ...(http ? describeHttp(socket, http) : describeRpc(call.head)),
      "network.peer.address": socket.remoteAddress,
      "network.peer.port": socket.remotePort,
    };
    const span = tracer.startSpan(name, { kind: SpanKind.SERVER, attributes }, parent);
    call.onClose(() => endSpan(span, call));
    return span.spanContext().traceId;
  };
}

function describeRpc({ method, transport }: CallHead): Attributes {
  return {
    "rpc.system.name": transport === "connect" ? "connectrpc" : "grpc",
    "rpc.method": methodNameOf(method),
  };
}

function describeHttp(socket: Socket, { request, route }: HttpCall): Attributes {
  const path = pathOf(request);
  const id = path.slice(path.lastIndexOf("/") + 1);
  return {
    "http.request.method": request.method,
    "http.route": route,
    // Anything but an id could be sensitive.
    "url.path": route.replace("{id}", isUuid(id) ? id : "REDACTED"),
    "url.scheme": "encrypted" in socket && socket.encrypted ? "https" : "http",
    "network.protocol.version": request.httpVersionMajor === 2 ? "2" : "1.1",
  };
}

function endSpan(span: Span, call: Call): void {
  const { code, head } = call;
  const { transport, response } = head;
  // Connect's names for error codes; it has none for success.
  const name = transport === "connect" ? code.toLowerCase().replace("cancelled", "canceled") : code;
  if (transport === "rest") {
    if ("statusCode" in response && response.headersSent) {
      span.setAttribute("http.response.status_code", response.statusCode);
    }
  } else if (transport !== "connect" || code !== "OK") {
    span.setAttribute("rpc.status_code", name);
  }
  if (faults.has(code)) {
    span.setAttribute("error.type", name);
    span.setStatus({ code: SpanStatusCode.ERROR });
  }
  span.end();
}
