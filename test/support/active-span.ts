/**
 * Loaded before the service, this does what an SDK of OpenTelemetry would: it lets every call
 * run within an active span, that of the trace in `ACTIVE_TRACE`.
 */
import { context, ROOT_CONTEXT, trace } from "@opentelemetry/api";

const span = { traceId: process.env.ACTIVE_TRACE ?? "", spanId: "b7ad6b7169203331", traceFlags: 1 };
const active = trace.setSpanContext(ROOT_CONTEXT, span);
context.setGlobalContextManager({
  active: () => active,
  with: (_, run, self, ...args) => run.call(self, ...args),
  bind: (_, target) => target,
  enable() {
    return this;
  },
  disable() {
    return this;
  },
});
