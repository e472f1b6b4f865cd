import { Code, ConnectError, type Interceptor } from "@connectrpc/connect";
import { callKey } from "./call.ts";

/**
 * Ends unary calls that take longer than `limitMs`, or than their client waits, by aborting
 * their signal. Streams last as long as their client waits.
 */
export function createDeadlineInterceptor(limitMs: number): Interceptor {
  return (next) => async (req) => {
    const call = req.contextValues.get(callKey);
    const timeoutMs = call?.timeoutMs ?? Number.POSITIVE_INFINITY;
    const ms = req.stream ? timeoutMs : Math.min(timeoutMs, limitMs);
    if (!Number.isFinite(ms)) return next(req);
    const timer = setTimeout(() => {
      call?.abort(new ConnectError("the call took too long", Code.DeadlineExceeded));
    }, ms);
    try {
      return await next(req);
    } finally {
      clearTimeout(timer);
    }
  };
}
