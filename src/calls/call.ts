import { randomBytes } from "node:crypto";
import type { EventEmitter } from "node:events";
import type { Socket } from "node:net";
import { create, type DescMethod, type DescService, type Message } from "@bufbuild/protobuf";
import {
  Code,
  ConnectError,
  type ContextValues,
  createContextKey,
  createContextValues,
  type HandlerContext,
  type Interceptor,
  type MethodImplSpec,
} from "@connectrpc/connect";
import { trace } from "@opentelemetry/api";
import type { Logger } from "pino";
import { internal } from "../service/errors.ts";
import type { Connection } from "./connection.ts";

/** The protocols of calls, as metrics and logs name them. */
export type TransportName = "grpc" | "connect" | "grpc-web" | "rest";

/** The implementation of a unary method. */
export type UnarySpec = MethodImplSpec & { kind: "unary" };

/** What a transport knows of a call when its headers are there. */
export interface CallHead {
  readonly method: DescMethod;
  readonly transport: TransportName;
  readonly socket: Socket;
  /** What the reply is written to; it emits `close` when that was sent, or never will be. */
  readonly reply: EventEmitter;
  /** Whether that has been closed already. */
  isClosed(): boolean;
  /** Whether all of the reply was sent, once that is closed. */
  wasSent(): boolean;
  /** The value of a header, named in lower case. */
  header(name: "authorization" | "traceparent"): string | undefined;
  /** Makes all headers of the request. */
  requestHeader(): Headers;
  readonly requestMethod: string;
  readonly url: string;
  /** How long the client waits, in milliseconds, if the call itself is to see to it. */
  readonly timeoutMs?: number | undefined;
  /** What goes along to the service; made if absent. */
  readonly values?: ContextValues;
}

/** What all calls of a server have in common. */
export interface CallOptions {
  /** How long a call may take, in milliseconds. */
  requestTimeoutMs: number;
  /** Is told of faults. */
  log: Logger;
}

/** The call that a context belongs to. */
const callKey = createContextKey<Call | undefined>(undefined, { description: "call" });

/** One for all, since the stack of an error is costly. */
const clientLeft = new ConnectError("the client left", Code.Canceled);

/**
 * One call on any protocol, from its headers until its reply was sent: who makes it, how long
 * it may take, and why it failed. It is the context that a unary method runs in.
 */
export class Call implements HandlerContext {
  readonly head: CallHead;
  readonly connection: Connection;
  readonly values: ContextValues;
  /** Why it failed; the first {@link Call.fail} counts. */
  failure: ConnectError | undefined;
  /** The headers and trailers of the reply, once the implementation has asked for them. */
  header: Headers | undefined;
  trailer: Headers | undefined;
  readonly #options: CallOptions;
  readonly #start = performance.now();
  readonly #controller = new AbortController();
  readonly #closeListeners: (() => void)[] = [];
  #isClosed = false;
  #isRunning = false;
  #id: string | undefined;
  #requestHeader: Headers | undefined;

  constructor(head: CallHead, connection: Connection, options: CallOptions) {
    this.head = head;
    this.connection = connection;
    this.#options = options;
    this.values = (head.values ?? createContextValues()).set(callKey, this);
    if (head.isClosed()) this.#close();
    else head.reply.once("close", () => this.#close());
  }

  /**
   * Runs the implementation of a unary method in this call.
   *
   * @throws {ConnectError} see {@link Call.run}
   */
  async invoke({ method, impl }: UnarySpec, input: Message): Promise<Message> {
    // An implementation may reply with a plain object instead of a message.
    return this.run(async () => create(method.output, await impl(input, this)));
  }

  /**
   * Runs work that ends when its client leaves, or when the call takes longer than its client
   * waits or a call may take: by {@link Call.signal}. A stream lasts as long as its client waits.
   *
   * @throws {ConnectError} what the work threw, as {@link Call.fail} tells of it
   */
  async run<T>(work: () => Promise<T>, isStream = false): Promise<T> {
    this.#id ??= trace.getActiveSpan()?.spanContext().traceId;
    const limitMs = isStream ? Number.POSITIVE_INFINITY : this.#options.requestTimeoutMs;
    const ms = Math.min(this.timeoutMs() ?? Number.POSITIVE_INFINITY, limitMs);
    const timer = Number.isFinite(ms) ? setTimeout(() => this.#expire(), ms) : undefined;
    this.#isRunning = true;
    try {
      this.throwIfClosed();
      return await work();
    } catch (error) {
      throw this.fail(error);
    } finally {
      this.#isRunning = isStream;
      clearTimeout(timer);
    }
  }

  /**
   * Notes why the call failed and tells what to reply. What is no ConnectError is a fault of
   * the service: INTERNAL with an id, under which the cause goes to the log and nowhere else.
   */
  fail(error: unknown): ConnectError {
    const reply = this.#toReply(error);
    this.failure ??= reply;
    return reply;
  }

  /** Calls back when the reply was sent, or never will be; at once if that has happened. */
  onClose(listener: () => void): void {
    if (this.#isClosed) listener();
    else this.#closeListeners.push(listener);
  }

  /** Ends the work on it because nobody waits for the reply any more. */
  abandon(): void {
    // Nothing is left to abort in a call that has been handled, and most have been.
    if (this.#isRunning) this.#controller.abort(clientLeft);
  }

  /**
   * Goes on only if somebody still waits for the reply.
   *
   * @throws {ConnectError} CANCELLED, if nobody does
   */
  throwIfClosed(): void {
    if (this.#isClosed) throw clientLeft;
  }

  /** The id by which logs and errors tell of it: that of its trace, or a random one. */
  get id(): string {
    this.#id ??= parentTrace(this.head.header("traceparent")) ?? randomBytes(16).toString("hex");
    return this.#id;
  }

  /** Aborts when the work on it is to end early. */
  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** How long its client still waits, in milliseconds. */
  readonly timeoutMs = (): number | undefined => {
    const { timeoutMs } = this.head;
    return timeoutMs && Math.max(0, Math.ceil(timeoutMs - (performance.now() - this.#start)));
  };

  get method(): DescMethod {
    return this.head.method;
  }

  get service(): DescService {
    return this.head.method.parent;
  }

  get protocolName(): string {
    return this.head.transport;
  }

  get requestMethod(): string {
    return this.head.requestMethod;
  }

  get url(): string {
    return this.head.url;
  }

  get requestHeader(): Headers {
    this.#requestHeader ??= this.head.requestHeader();
    return this.#requestHeader;
  }

  get responseHeader(): Headers {
    this.header ??= new Headers();
    return this.header;
  }

  get responseTrailer(): Headers {
    this.trailer ??= new Headers();
    return this.trailer;
  }

  #expire(): void {
    this.#controller.abort(new ConnectError("the call took too long", Code.DeadlineExceeded));
  }

  #close(): void {
    this.#isClosed = true;
    this.abandon();
    for (const listener of this.#closeListeners) listener();
  }

  #toReply(error: unknown): ConnectError {
    if (error instanceof ConnectError) return error;
    // What breaks when nobody waits for the reply any more is no fault.
    if (this.signal.aborted) return ConnectError.from(this.signal.reason, Code.Canceled);
    if (this.#isClosed) return clientLeft;
    this.#options.log.error({ err: error, traceId: this.id }, "internal error");
    return internal(this.id, error);
  }
}

/** Lets Connect's own handlers work as {@link Call.run} does. */
export const runCall: Interceptor = (next) => (req) => {
  const call = req.contextValues.get(callKey);
  return call === undefined ? next(req) : call.run(() => next(req), req.stream);
};

/** The trace that a caller carries on (https://www.w3.org/TR/trace-context). */
function parentTrace(traceparent = ""): string | undefined {
  return /^[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-/.exec(traceparent)?.[1];
}
