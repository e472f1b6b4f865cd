import { Code, ConnectError, type Interceptor } from "@connectrpc/connect";

/**
 * Ends unary calls that take longer than `limitMs` by aborting their signal, as a
 * deadline of the client's does; whichever comes first counts. Streams last as long as
 * their client's deadline lets them.
 */
export function createDeadlineInterceptor(limitMs: number): Interceptor {
  return (next) => async (req) => {
    if (req.stream) return next(req);
    const controller = new AbortController();
    const forward = () => controller.abort(req.signal.reason);
    if (req.signal.aborted) forward();
    req.signal.addEventListener("abort", forward);
    const timer = setTimeout(() => {
      controller.abort(new ConnectError("the call took too long", Code.DeadlineExceeded));
    }, limitMs);
    try {
      return await next({ ...req, signal: controller.signal });
    } finally {
      clearTimeout(timer);
      req.signal.removeEventListener("abort", forward);
    }
  };
}
