import type { HandlerContext } from "@connectrpc/connect";
import type { Call } from "./call.ts";

/** What a transport adds to a {@link Call} to make a context of it. */
export interface ContextInit {
  protocolName: string;
  requestMethod: string;
  url: string;
  requestHeader: Headers;
  /** For how long the client waits, in milliseconds. */
  timeoutMs?: number | undefined;
}

/**
 * Makes the context in which the service handles a call. Connect's own would watch a signal
 * of the request and a timer too, which the call and the deadline interceptor do already.
 */
export function createContext(call: Call, init: ContextInit): HandlerContext {
  const { protocolName, requestMethod, url, requestHeader, timeoutMs } = init;
  const { method } = call.head;
  const start = performance.now();
  const controller = new AbortController();
  call.timeoutMs = timeoutMs;
  call.abort = (reason) => controller.abort(reason);
  return {
    service: method.parent,
    method,
    protocolName,
    requestMethod,
    url,
    requestHeader,
    responseHeader: new Headers(),
    responseTrailer: new Headers(),
    values: call.values,
    signal: controller.signal,
    timeoutMs: () =>
      timeoutMs === undefined ? undefined : Math.max(0, timeoutMs - (performance.now() - start)),
  };
}
