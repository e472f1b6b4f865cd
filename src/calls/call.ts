import { randomBytes } from "node:crypto";
import type { EventEmitter } from "node:events";
import type { Socket } from "node:net";
import type { DescMethod } from "@bufbuild/protobuf";
import {
  Code,
  ConnectError,
  type ContextValues,
  createContextKey,
  createContextValues,
} from "@connectrpc/connect";
import { trace } from "@opentelemetry/api";
import type { Connection } from "./connection.ts";

/** The ways to come in, as metrics and logs name them. */
export type TransportName = "grpc" | "connect" | "grpc-web" | "rest";

/** What a transport knows of a call when its headers are there. */
export interface CallHead {
  readonly method: DescMethod;
  readonly transport: TransportName;
  readonly socket: Socket;
  /** What the reply is written to; it emits `close` when that was sent, or never will be. */
  readonly answer: EventEmitter;
  /** Whether that has been closed already. */
  isClosed(): boolean;
  /** Whether all of the answer has left, once that is closed. */
  hasLeft(): boolean;
  /** The value of a header, named in lower case. */
  header(name: "authorization" | "traceparent"): string | undefined;
  /** What goes along to the interceptors and the service; made if absent. */
  readonly values?: ContextValues;
}

/** The call that a context belongs to. */
export const callKey = createContextKey<Call | undefined>(undefined, { description: "call" });

/** One for all, since the stack of an error is costly. */
const clientLeft = new ConnectError("the client left", Code.Canceled);

/** One call, from its headers until its answer has left, whichever way it came. */
export class Call {
  readonly head: CallHead;
  readonly connection: Connection;
  readonly values: ContextValues;
  /** Why it failed, as noted by {@link Call.fail}. */
  failure: ConnectError | undefined;
  /** For how long its client waits, in milliseconds, where the deadline interceptor is to see to it. */
  timeoutMs: number | undefined;
  readonly #closeListeners: (() => void)[] = [];
  #isClosed = false;
  #onAbort: ((reason: ConnectError) => void) | undefined;
  #abortReason: ConnectError | undefined;
  #id: string | undefined;

  constructor(head: CallHead, connection: Connection) {
    this.head = head;
    this.connection = connection;
    this.values = (head.values ?? createContextValues()).set(callKey, this);
    if (head.isClosed()) this.#close();
    else head.answer.once("close", () => this.#close());
  }

  /** Ends it because nobody waits for its reply any more. */
  abandon(): void {
    this.abort(clientLeft);
  }

  /** Aborts what {@link Call.onAbort} was told of, now or once it is told. */
  abort(reason: ConnectError): void {
    this.#abortReason ??= reason;
    this.#onAbort?.(reason);
  }

  /** Calls back when it is to end early, at once if that has been said; undefined calls nobody. */
  onAbort(listener: ((reason: ConnectError) => void) | undefined): void {
    this.#onAbort = listener;
    if (this.#abortReason !== undefined) listener?.(this.#abortReason);
  }

  /**
   * Goes on only if somebody still waits for the reply.
   *
   * @throws {ConnectError} CANCELLED, if nobody does
   */
  throwIfClosed(): void {
    if (this.#isClosed) throw clientLeft;
  }

  /** Calls back when its reply was sent, or never will be; at once if that has happened. */
  onClose(listener: () => void): void {
    if (this.#isClosed) listener();
    else this.#closeListeners.push(listener);
  }

  #close(): void {
    this.#isClosed = true;
    this.abandon();
    for (const listener of this.#closeListeners) listener();
  }

  /** The id by which logs and errors tell of it: that of its trace, or a random one. */
  get id(): string {
    this.#id ??= parentTrace(this.head.header("traceparent")) ?? randomBytes(16).toString("hex");
    return this.#id;
  }

  /** Takes the id of the trace that is recorded here, if one is. */
  joinTrace(): void {
    this.#id ??= trace.getActiveSpan()?.spanContext().traceId;
  }

  /** Notes why it failed; what is noted first counts. */
  fail(error: unknown): void {
    this.failure ??= ConnectError.from(error, Code.Internal);
  }
}

/** The trace that a caller carries on (https://www.w3.org/TR/trace-context). */
function parentTrace(traceparent = ""): string | undefined {
  return /^[0-9a-f]{2}-([0-9a-f]{32})-/.exec(traceparent)?.[1];
}
