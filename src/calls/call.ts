import { randomBytes } from "node:crypto";
import {
  Code,
  ConnectError,
  type ContextValues,
  createContextValues,
  type HandlerContext,
} from "@connectrpc/connect";
import { codeToString } from "@connectrpc/connect/protocol-connect";
import type { Caller } from "../auth/caller.ts";
import { cancelled, deadlineExceeded, internal } from "../errors.ts";
import { outputOf } from "../http/reply.ts";
import { deadlineKey } from "../service/context.ts";
import type { CallHead } from "./call-head.ts";

/** Starts the span of a call, which ends when its reply has closed, and returns the id of its trace. */
export type StartSpan = (call: Call) => string;

/** What all calls of a server have in common. */
export interface CallOptions {
  /** Timeout of a call, in milliseconds. */
  requestTimeoutMs: number;
  /** Logs a fault under the id that its caller gets. */
  logFault(error: unknown, id: string): void;
  /** Traces calls, but for public ones; they are not traced if absent. */
  startSpan?: StartSpan | undefined;
}

/** The longest that a timer of Node.js can wait, in milliseconds: some 24 days. */
const maxTimerMs = 2 ** 31 - 1;

/** How long a call that gives way has to send its last status, in milliseconds. */
const lastStatusMs = 1_000;

// One for all calls, since the stack of an error is costly.
const clientLeft = cancelled("nobody waits for the reply");
const deadlinePassed = deadlineExceeded("nothing was written");
const replyNotRead = deadlineExceeded("the reply was not read");

/**
 * One call on any protocol, from its headers until its reply was sent: who makes it, how long it may
 * take, and why it failed. It is the context that the service gets.
 */
export class Call implements Pick<HandlerContext, "signal" | "values"> {
  readonly head: CallHead;
  readonly values: ContextValues = createContextValues();
  /** When it began, by performance.now(). */
  readonly startedAt = performance.now();
  /** Whether its deadline is that of its client, which is no failure of the service. */
  readonly isDeadlineOfClient: boolean;
  caller: Caller | undefined;
  /** Why it failed; the first {@link Call.recordFailure} counts. */
  failure: ConnectError | undefined;
  /** Whether its implementation was reached. */
  wasInvoked = false;
  readonly #options: CallOptions;
  readonly #closeListeners: (() => void)[] = [];
  #controller: AbortController | undefined;
  #abortReason: ConnectError | undefined;
  #onAbort: ((reason: ConnectError) => void) | undefined;
  #stopTimer = () => {};
  #onRead: (() => void) | undefined;
  #isClosed = false;
  #wasSent = false;
  #sentBytes = 0;
  #id: string | undefined;

  constructor(head: CallHead, options: CallOptions) {
    this.head = head;
    this.#options = options;
    const { timeoutMs = Infinity } = head;
    this.isDeadlineOfClient = timeoutMs <= options.requestTimeoutMs;
    const ms = Math.min(timeoutMs, options.requestTimeoutMs);
    if (timeoutMs < Infinity) this.values.set(deadlineKey, this.startedAt + ms);
    this.setDeadline(ms);
    head.response.once("close", () => this.#close());
    if (!head.isPublic) this.#id = options.startSpan?.(this);
  }

  /** Sets its deadline, in milliseconds from now, instead of the previous one. */
  setDeadline(ms = this.#options.requestTimeoutMs): void {
    const pass = () => {
      this.#abort(deadlinePassed);
      this.startReplyTimeout();
    };
    this.#stopTimer();
    // A timer takes a millisecond at least, in which a record can be stored.
    if (ms <= 0) pass();
    else if (!this.#isClosed && ms <= maxTimerMs) {
      const timer = setTimeout(pass, ms);
      this.#stopTimer = () => clearTimeout(timer);
    }
  }

  /**
   * Replaces the deadline by the time that its client has to read what is sent to it now, and before
   * that what was sent of whole lists on its connection. After that time the connection is closed.
   *
   * @param sentBytes how much of the reply was sent before
   */
  startReplyTimeout(sentBytes = 0): void {
    const { connection, response } = this.head;
    this.#sentBytes = sentBytes;
    this.#endRead();
    this.#stopTimer();
    if (this.#isClosed) return;
    if (sentBytes > 0) connection.awaitReader(sentBytes);
    this.#stopTimer = connection.endUnlessRead(response, sentBytes, () => {
      this.failure ??= replyNotRead;
    });
  }

  /** Ends early, for other callers. A reply that has begun gets a second to be read. */
  giveWay(reason: ConnectError): void {
    this.#abort(reason);
    const { response } = this.head;
    if (response.headersSent) setTimeout(() => response.destroy(), lastStatusMs).unref();
  }

  /**
   * Records why the call failed and returns what to reply. Anything but a ConnectError is a fault
   * of the service: INTERNAL with an id, under which the cause goes to the log and nowhere else.
   */
  recordFailure(error: unknown): ConnectError {
    this.#endRead();
    const reply = this.#toReply(error);
    if (this.failure === undefined) {
      this.failure = reply;
      // Its request may go on, which holds up nothing but its stream.
      outputOf(this.head.response).once("finish", () => this.#close());
    }
    return reply;
  }

  /** Calls back when the reply was sent, or never will be; at once if that has happened. */
  onClose(listener: () => void): void {
    if (this.#isClosed) listener();
    else this.#closeListeners.push(listener);
  }

  /** Calls back once, when its page has been read, or never will be. */
  onceRead(listener: () => void): void {
    if (this.#isClosed || this.#abortReason) listener();
    else this.#onRead = listener;
  }

  /** Keeps its connection from being replaced by a new one until it closes. */
  useConnection(isWatch = false): void {
    const release = this.head.connection.use(isWatch);
    this.onClose(() => release(this.#sentBytes));
  }

  /**
   * Resolves with the outcome of work that does not itself end with the call.
   *
   * @throws {ConnectError} CANCELLED or DEADLINE_EXCEEDED, if nobody waits for the reply any more
   */
  unlessAborted<T>(work: Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      this.#onAbort = reject;
      if (this.#abortReason) reject(this.#abortReason);
      work.then(resolve, reject);
    });
  }

  /** @throws {ConnectError} CANCELLED or DEADLINE_EXCEEDED, if the work on it is to end early */
  throwIfAborted(): void {
    if (this.#abortReason) throw this.#abortReason;
  }

  /** Whether the reply was sent, or never will be. */
  get isClosed(): boolean {
    return this.#isClosed;
  }

  /** The name of its code in gRPC (https://grpc.io/docs/guides/status-codes), once it has closed. */
  get code(): string {
    if (this.failure === undefined && this.#wasSent) return "OK";
    const code = this.failure?.code ?? Code.Canceled;
    return code === Code.Canceled ? "CANCELLED" : codeToString(code).toUpperCase();
  }

  /**
   * Its id in logs and errors: that of the trace that its caller carries on
   * (https://www.w3.org/TR/trace-context), or a random one.
   */
  get id(): string {
    if (this.#id === undefined) {
      const traceparent = String(this.head.headers.traceparent);
      const [, traceId] = /^[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-/.exec(traceparent) ?? [];
      this.#id = traceId ?? randomBytes(16).toString("hex");
    }
    return this.#id;
  }

  /** Aborts when the work on it is to end early. It is costly, and made when it is first asked for. */
  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController();
      if (this.#abortReason) this.#controller.abort(this.#abortReason);
    }
    return this.#controller.signal;
  }

  #endRead(): void {
    this.#onRead?.();
    this.#onRead = undefined;
  }

  #close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#stopTimer();
    this.#endRead();
    const { response } = this.head;
    const output = outputOf(response);
    // Node.js finishes a stream of HTTP/2 also when it is reset, or its connection has ended.
    const wasCut = "aborted" in output && output.aborted;
    this.#wasSent = response.headersSent && response.writableFinished && !wasCut;
    if (!this.#wasSent) this.#abort(clientLeft);
    for (const listener of this.#closeListeners) listener();
  }

  #abort(reason: ConnectError): void {
    if (this.#abortReason) return;
    this.#abortReason = reason;
    this.#onAbort?.(reason);
    this.#controller?.abort(reason);
  }

  #toReply(error: unknown): ConnectError {
    if (error instanceof ConnectError) return error;
    // What breaks when nobody waits for the reply any more is no fault.
    if (this.#abortReason) return this.#abortReason;
    // Node.js reports later that a stream was reset, when a reply on it has failed.
    const { code } = Object(error) as NodeJS.ErrnoException;
    if (this.#isClosed || code === "ERR_HTTP2_INVALID_STREAM") return clientLeft;
    this.#options.logFault(error, this.id);
    return internal(this.id, error);
  }
}
