import {
  context,
  isSpanContextValid,
  propagation,
  type Span,
  SpanKind,
  SpanStatusCode,
  trace,
} from "@opentelemetry/api";
import type { Call } from "./call.ts";

/**
 * Begins the span of a call, which ends with it: a child of what is traced already, or of what its
 * caller traces (https://opentelemetry.io/docs/specs/semconv/rpc/rpc-spans). Without an SDK it is
 * nothing.
 */
export function startSpan(call: Call): Span {
  const { method, transport, exchange } = call.head;
  const active = context.active();
  const parent = trace.getSpan(active) ? active : propagation.extract(active, exchange.headers);
  const span = trace.getTracer("investor-records").startSpan(
    `${method.parent.typeName}/${method.name}`,
    {
      kind: SpanKind.SERVER,
      attributes: {
        "rpc.system": transport === "connect" ? "connect_rpc" : transport,
        "rpc.service": method.parent.typeName,
        "rpc.method": method.name,
      },
    },
    parent,
  );
  if (span.isRecording()) call.onClose(() => endSpan(span, call));
  return span;
}

/** The id of the trace of a span, if there is one. */
export function traceIdOf(span: Span): string | undefined {
  const spanContext = span.spanContext();
  return isSpanContextValid(spanContext) ? spanContext.traceId : undefined;
}

/** Runs work as a part of what a span tells of. */
export function runInSpan<T>(span: Span, work: () => T): T {
  return span.isRecording() ? context.with(trace.setSpan(context.active(), span), work) : work();
}

function endSpan(span: Span, { failure }: Call): void {
  span.setAttribute("rpc.grpc.status_code", failure?.code ?? 0);
  if (failure !== undefined) span.setStatus({ code: SpanStatusCode.ERROR });
  span.end();
}
