import type { DescMethod, DescService } from "@bufbuild/protobuf";
import type { ContextValues, HandlerContext } from "@connectrpc/connect";
import type { Call } from "./call.ts";

/** What a transport adds to a {@link Call} to make a context of it. */
export interface ContextInit {
  protocolName: string;
  requestMethod: string;
  url: string;
  /** Makes the headers of the request, when they are asked for. */
  requestHeader(): Headers;
  /** For how long the client waits, in milliseconds. */
  timeoutMs?: number | undefined;
}

/**
 * The context in which the service handles a call. Connect's own would watch a signal of the
 * request and a timer too, which the call and the deadline interceptor do already.
 */
export class CallContext implements HandlerContext {
  readonly service: DescService;
  readonly method: DescMethod;
  readonly protocolName: string;
  readonly requestMethod: string;
  readonly url: string;
  readonly responseHeader = new Headers();
  readonly responseTrailer = new Headers();
  readonly values: ContextValues;
  readonly signal: AbortSignal;
  readonly timeoutMs: () => number | undefined;
  readonly #call: Call;
  readonly #makeHeader: () => Headers;
  #header: Headers | undefined;

  /** From now on, the call aborts its signal. */
  constructor(call: Call, init: ContextInit) {
    const { method } = call.head;
    const { timeoutMs } = init;
    const end = Date.now() + (timeoutMs ?? 0);
    const controller = new AbortController();
    call.timeoutMs = timeoutMs;
    call.onAbort((reason) => controller.abort(reason));
    this.service = method.parent;
    this.method = method;
    this.protocolName = init.protocolName;
    this.requestMethod = init.requestMethod;
    this.url = init.url;
    this.values = call.values;
    this.signal = controller.signal;
    this.timeoutMs = () => timeoutMs && Math.max(0, end - Date.now());
    this.#call = call;
    this.#makeHeader = init.requestHeader;
  }

  /** Says that the call has been handled, so that there is nothing left to abort. */
  settle(): void {
    this.#call.onAbort(undefined);
  }

  get requestHeader(): Headers {
    this.#header ??= this.#makeHeader();
    return this.#header;
  }
}
