import { randomBytes } from "node:crypto";
import { type ContextValues, createContextValues, type HandlerContext } from "@connectrpc/connect";
import type { Caller } from "../auth/caller.ts";
import { cancelled, deadlineExceeded, Failure, internal, nameOf } from "../failures.ts";
import { outputOf, startReplyTimer } from "../http/reply.ts";
import { deadlineKey } from "../service/context.ts";
import { type CallHead, traceIdOf } from "./call-head.ts";

export interface CallOptions {
  requestTimeoutMs: number;
  /** Logs a fault under the id that the caller gets. */
  logFault(error: unknown, id: string): void;
  /** Starts the span of a call that is not public, until its reply has closed, and returns its trace id. */
  startSpan?: ((call: Call) => string) | undefined;
}

// Shared by all calls, since an error's stack is costly.
const clientLeft = cancelled("nobody waits for the reply");
const deadlinePassed = deadlineExceeded("nothing was written");
const replyNotRead = deadlineExceeded("the reply was not read");

/**
 * One call on any protocol, from its headers until its reply was sent: its caller, its deadline,
 * and why it failed. The service gets it as its context.
 */
export class Call implements Pick<HandlerContext, "signal" | "values"> {
  readonly head: CallHead;
  readonly values: ContextValues = createContextValues();
  /** When the call began, by performance.now(). */
  readonly startedAt = performance.now();
  /** Whether the deadline was set by the client, so that missing it is not a failure of the service. */
  readonly isDeadlineOfClient: boolean;
  caller: Caller | undefined;
  /** Why the call failed: the first error passed to {@link Call.recordFailure}. */
  failure: Failure | undefined;
  /** Whether the reply has been sent or abandoned. */
  isClosed = false;
  readonly #options: CallOptions;
  readonly #closeListeners: (() => void)[] = [];
  #controller: AbortController | undefined;
  #abortReason: Failure | undefined;
  #onAbort: ((reason: Failure) => void) | undefined;
  /** Of the deadline, then of the reply. */
  #timer: NodeJS.Timeout | undefined;
  #wasSent = false;
  #id: string | undefined;

  constructor(head: CallHead, options: CallOptions) {
    this.head = head;
    this.#options = options;
    const { timeoutMs = Infinity } = head;
    this.isDeadlineOfClient = timeoutMs <= options.requestTimeoutMs;
    this.setDeadline(Math.min(timeoutMs, options.requestTimeoutMs));
    head.response.once("close", () => this.#close());
    if (!head.isPublic) this.#id = options.startSpan?.(this);
  }

  /** Replaces the deadline with one in `ms` milliseconds from now. */
  setDeadline(ms = this.#options.requestTimeoutMs): void {
    const pass = () => {
      this.#abort(deadlinePassed);
      this.startReplyTimer();
    };
    this.values.set(deadlineKey, performance.now() + ms);
    clearTimeout(this.#timer);
    // No timer: it would take at least a millisecond, in which a record can be stored.
    if (ms <= 0) pass();
    else if (!this.isClosed) this.#timer = setTimeout(pass, ms);
  }

  /** Replaces the deadline by the time that what is sent now may take to leave the process. */
  startReplyTimer(): void {
    clearTimeout(this.#timer);
    if (this.isClosed) return;
    this.#timer = startReplyTimer(this.head.connection, () => {
      this.failure ??= replyNotRead;
    });
  }

  /**
   * Records why the call failed and returns what to reply with. Anything but a Failure is a fault of the
   * service: INTERNAL with an id, under which the cause is logged and shown nowhere else.
   */
  recordFailure(error: unknown): Failure {
    const reply = this.#toReply(error);
    if (this.failure === undefined) {
      this.failure = reply;
      // The request may go on arriving, which holds up only its own stream.
      outputOf(this.head.response).once("finish", () => this.#close());
    }
    return reply;
  }

  /** Calls back once the reply has been sent or abandoned; at once if that has happened. */
  onClose(listener: () => void): void {
    if (this.isClosed) listener();
    else this.#closeListeners.push(listener);
  }

  /**
   * Settles with the work, which itself goes on when the call ends.
   *
   * @throws {Failure} CANCELLED or DEADLINE_EXCEEDED, if nobody waits for the reply any more
   */
  unlessAborted<T>(work: Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      this.#onAbort = reject;
      if (this.#abortReason) reject(this.#abortReason);
      work.then(resolve, reject);
    });
  }

  /** @throws {Failure} CANCELLED or DEADLINE_EXCEEDED, if the call has been aborted */
  throwIfAborted(): void {
    if (this.#abortReason) throw this.#abortReason;
  }

  /** The name of the gRPC status code (https://grpc.io/docs/guides/status-codes), once the call has closed. */
  get code(): string {
    if (this.failure) return nameOf(this.failure.code);
    return this.#wasSent ? "OK" : "CANCELLED";
  }

  /** The call's id in logs and errors: the trace id that its caller propagates, or a random one. */
  get id(): string {
    this.#id ??= traceIdOf(this.head.headers) ?? randomBytes(16).toString("hex");
    return this.#id;
  }

  /** Aborts when work on the call should end early. Created on first access, since it is costly. */
  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController();
      if (this.#abortReason) this.#controller.abort(this.#abortReason);
    }
    return this.#controller.signal;
  }

  #close(): void {
    if (this.isClosed) return;
    this.isClosed = true;
    clearTimeout(this.#timer);
    const { response } = this.head;
    const output = outputOf(response);
    // Node.js also finishes an HTTP/2 stream when it is reset, or its connection has ended.
    const wasCut = "aborted" in output && output.aborted;
    this.#wasSent = response.headersSent && response.writableFinished && !wasCut;
    if (!this.#wasSent) this.#abort(clientLeft);
    for (const listener of this.#closeListeners) listener();
  }

  #abort(reason: Failure): void {
    if (this.#abortReason) return;
    this.#abortReason = reason;
    this.#onAbort?.(reason);
    this.#controller?.abort(reason);
  }

  #toReply(error: unknown): Failure {
    if (error instanceof Failure) return error;
    // Errors after an abort are not faults.
    if (this.#abortReason) return this.#abortReason;
    // Node.js reports the reset of a stream only after a reply on it has failed.
    const { code } = Object(error) as NodeJS.ErrnoException;
    if (this.isClosed || code === "ERR_HTTP2_INVALID_STREAM") return clientLeft;
    this.#options.logFault(error, this.id);
    return internal(this.id, error);
  }
}
