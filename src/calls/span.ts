import {
  type Attributes,
  context,
  ProxyTracerProvider,
  propagation,
  type Span,
  SpanKind,
  SpanStatusCode,
  trace,
} from "@opentelemetry/api";
import type { Exchange } from "../http/exchange.ts";
import { isUuid } from "../uuid.ts";
import type { Call } from "./call.ts";
import { codeOf, nameOf } from "./telemetry.ts";

/** The span of a call. */
export interface CallSpan {
  /** The id of its trace. */
  readonly traceId: string;
  /** Runs work as a part of it. */
  run<T>(work: () => T): T;
}

/** Starts the span of a call, which ends when its reply has closed. */
export type StartSpan = (call: Call) => CallSpan;

const tracerName = "investor-records";

/** The codes of faults of a server (https://opentelemetry.io/docs/specs/semconv/rpc/grpc). */
const faults = new Set([
  "UNKNOWN",
  "DEADLINE_EXCEEDED",
  "UNIMPLEMENTED",
  "INTERNAL",
  "UNAVAILABLE",
  "DATA_LOSS",
]);

/**
 * Creates the tracing of calls by the registered OpenTelemetry SDK; undefined if there is none.
 * Each call has a span: of RPC (https://opentelemetry.io/docs/specs/semconv/rpc/rpc-spans) or, for
 * REST, of HTTP (https://opentelemetry.io/docs/specs/semconv/http/http-spans). It is the server
 * span, a child of its caller's, unless HTTP itself is traced and has one already.
 */
export function createTracing(): StartSpan | undefined {
  const provider = trace.getTracerProvider();
  // Without an SDK, it is the placeholder of the API.
  if (provider instanceof ProxyTracerProvider && !provider.getDelegateTracer(tracerName)) {
    return undefined;
  }
  const tracer = provider.getTracer(tracerName);
  return (call) => {
    const { exchange, route } = call.head;
    const active = context.active();
    const outer = trace.getSpan(active);
    const httpRoute = route ?? exchange.path;
    outer?.setAttribute("http.route", httpRoute).updateName(`${exchange.method} ${httpRoute}`);
    const parent = outer ? active : propagation.extract(active, exchange.headers);
    const span = tracer.startSpan(
      route === undefined ? nameOf(call.method) : `${exchange.method} ${route}`,
      {
        kind: outer ? SpanKind.INTERNAL : SpanKind.SERVER,
        attributes: {
          ...(route === undefined ? describeRpc(call) : describeHttp(exchange, route)),
          ...describeNetwork(exchange),
        },
      },
      parent,
    );
    call.onClose(() => endSpan(span, call));
    const inside = trace.setSpan(parent, span);
    return {
      traceId: span.spanContext().traceId,
      run: (work) => context.with(inside, work),
    };
  };
}

function describeRpc({ method, head: { transport } }: Call): Attributes {
  return {
    "rpc.system.name": transport === "connect" ? "connectrpc" : "grpc",
    "rpc.method": nameOf(method),
  };
}

function describeHttp({ method, path, usage, httpVersion }: Exchange, route: string): Attributes {
  const id = path.slice(path.lastIndexOf("/") + 1);
  return {
    "http.request.method": method,
    "http.route": route,
    // What is no id can be anything.
    "url.path": route.replace("{id}", isUuid(id) ? id : "REDACTED"),
    "url.scheme": usage.isEncrypted ? "https" : "http",
    "network.protocol.version": httpVersion,
  };
}

function describeNetwork({ authority, socket, usage }: Exchange): Attributes {
  const [scheme, defaultPort] = usage.isEncrypted ? ["https", 443] : ["http", 80];
  const server = URL.parse(`${scheme}://${authority}`);
  return {
    ...(server && {
      "server.address": server.hostname.replace(/^\[(.*)\]$/, "$1"),
      "server.port": Number(server.port || defaultPort),
    }),
    ...(socket.remoteAddress !== undefined && {
      "network.peer.address": socket.remoteAddress,
      "network.peer.port": socket.remotePort,
    }),
  };
}

function endSpan(span: Span, call: Call): void {
  const { transport, exchange } = call.head;
  const code = codeOf(call);
  // Connect names its errors so, and has no name for success.
  const name = transport === "connect" ? code.toLowerCase().replace("cancelled", "canceled") : code;
  if (transport === "rest") {
    if (exchange.headersSent) span.setAttribute("http.response.status_code", exchange.status);
  } else if (transport !== "connect" || code !== "OK") {
    span.setAttribute("rpc.status_code", name);
  }
  if (faults.has(code)) {
    span.setAttribute("error.type", name);
    span.setStatus({ code: SpanStatusCode.ERROR });
  }
  span.end();
}
