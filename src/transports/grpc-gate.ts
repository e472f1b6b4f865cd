import { constants, type ServerHttp2Stream } from "node:http2";
import type { DescMethod } from "@bufbuild/protobuf";
import { ConnectError } from "@connectrpc/connect";
import {
  type Metadata,
  ServerInterceptingCall,
  type ServerInterceptingCallInterface,
  type ServerInterceptor,
  status,
} from "@grpc/grpc-js";
import type { Logger } from "pino";
import type { Call } from "../calls/call.ts";
import type { Gate } from "../calls/gate.ts";
import { callOpaqueKey, toGrpcStatus } from "./grpc-adapter.ts";
import { toHeaders } from "./grpc-metadata.ts";

/** Timeout of a client that reads the reply to a unary call, in milliseconds. */
const answerTimeoutMs = 30_000;

/** What {@link createGateInterceptor} needs. */
export interface GateInterceptorOptions {
  gate: Gate;
  /** The methods in which it has a say, by their paths `/package.Service/Method`. */
  gated: ReadonlyMap<string, DescMethod>;
  /** Timeout of a request that is one message, in milliseconds. */
  requestTimeoutMs: number;
  /** Is told of faults. */
  log: Logger;
}

/**
 * Asks the gate about every call when its headers are there, releases the slot when
 * its stream has closed, and closes streams on which a unary call does not get on.
 */
export function createGateInterceptor(options: GateInterceptorOptions): ServerInterceptor {
  return ({ path, requestStream, responseStream }, base) =>
    new GatedCall(base, options, path, !requestStream && !responseStream);
}

type Listener = Parameters<ServerInterceptingCallInterface["start"]>[0];
type Status = Parameters<ServerInterceptingCallInterface["sendStatus"]>[0];

/**
 * Passes everything on without the queues of its base class: nothing is read before the gate
 * has let the call in, so that nothing can overtake.
 */
class GatedCall extends ServerInterceptingCall {
  readonly #base: ServerInterceptingCallInterface;
  readonly #options: GateInterceptorOptions;
  readonly #path: string;
  readonly #isUnary: boolean;
  readonly #stream: ServerHttp2Stream;
  #call: Call | undefined;
  #timer: NodeJS.Timeout | undefined;
  #isComplete = false;
  #isAnswered = false;

  constructor(
    base: ServerInterceptingCallInterface,
    options: GateInterceptorOptions,
    path: string,
    isUnary: boolean,
  ) {
    super(base);
    this.#base = base;
    this.#options = options;
    this.#path = path;
    this.#isUnary = isUnary;
    // grpc-js has no public way to its stream, whose end is the only sign that an answer
    // has left, and which it leaves open if the client does not end its side.
    this.#stream = Reflect.get(base, "stream");
  }

  override start(listener: Listener): void {
    if (this.#isUnary) this.#limitTime();
    this.#stream.once("close", () => this.#leave());
    this.#base.start({
      onReceiveMetadata: (metadata: Metadata) => {
        this.#enter(metadata, listener).catch((error) => this.#reset(error));
      },
      onReceiveMessage: (message: unknown) => listener.onReceiveMessage(message),
      onReceiveHalfClose: () => {
        this.#isComplete = true;
        listener.onReceiveHalfClose();
      },
      onCancel: () => {
        // Before the listener ends the streams of the call, which looks like a fault.
        this.#call?.abandon();
        listener.onCancel();
      },
    });
  }

  override sendMetadata(metadata: Metadata): void {
    this.#base.sendMetadata(metadata);
  }

  override sendMessage(message: unknown, callback: () => void): void {
    this.#base.sendMessage(message, callback);
  }

  override sendStatus(answer: Status): void {
    this.#isAnswered = true;
    if (answer.code === status.OK) {
      // grpc-js says "OK" of a success, which has no message by the protocol.
      this.#base.sendStatus({ ...answer, details: "" });
    } else {
      // What the service itself has found is noted by now: INTERNAL of grpc-js itself is of a
      // request that it cannot read. Its code is that of the protocol all the same.
      const code = answer.code === status.INTERNAL ? status.INVALID_ARGUMENT : answer.code;
      this.#call?.fail(new ConnectError(answer.details ?? "", code as number));
      this.#base.sendStatus(answer);
    }
  }

  /** Lets the call go on if the gate lets it in; nothing is read before. */
  async #enter(metadata: Metadata, listener: Listener): Promise<void> {
    const method = this.#options.gated.get(this.#path);
    if (method !== undefined) {
      const { socket } = this.#stream.session ?? {};
      // Its connection is gone.
      if (socket === undefined) return;
      try {
        this.#call = await this.#options.gate.admit({
          method,
          transport: "grpc",
          socket,
          reply: this.#stream,
          isClosed: () => this.#stream.closed,
          wasSent: () => this.#isAnswered && this.#stream.rstCode === constants.NGHTTP2_NO_ERROR,
          header: (name) => metadata.get(name)[0]?.toString(),
          requestHeader: () => toHeaders(metadata),
          requestMethod: "POST",
          url: `http://${this.getHost()}${this.#path}`,
          timeoutMs: this.#timeoutMs(),
        });
        metadata.setOpaque(callOpaqueKey, this.#call);
      } catch (error) {
        if (!(error instanceof ConnectError)) throw error;
        this.#refuse(toGrpcStatus(error));
        return;
      }
    }
    listener.onReceiveMetadata(metadata);
  }

  /** Ends a call that nothing replies to any more. */
  #reset(error: unknown): void {
    this.#call?.fail(error);
    this.#options.log.error({ err: error, traceId: this.#call?.id }, "internal error");
    this.#stream.close(constants.NGHTTP2_INTERNAL_ERROR);
  }

  /** How long the client waits, in milliseconds. */
  #timeoutMs(): number | undefined {
    const deadline = Number(this.#base.getDeadline());
    return Number.isFinite(deadline) ? Math.max(0, deadline - Date.now()) : undefined;
  }

  #limitTime(): void {
    const { requestTimeoutMs } = this.#options;
    const cut = () => this.#stream.close(constants.NGHTTP2_CANCEL);
    this.#timer = setTimeout(() => {
      if (this.#isComplete) this.#timer = setTimeout(cut, answerTimeoutMs);
      else this.#refuse(lateRequest);
    }, requestTimeoutMs);
  }

  /**
   * Keeps its stream from keeping it: V8 holds on to what passed through the busy Map of a
   * session.
   */
  #leave(): void {
    clearTimeout(this.#timer);
    for (const event of ["data", "end"]) this.#stream.removeAllListeners(event);
  }

  #refuse(reason: Status): void {
    this.sendStatus(reason);
    this.#stream.close(constants.NGHTTP2_NO_ERROR);
  }
}

const lateRequest: Status = {
  code: status.DEADLINE_EXCEEDED,
  details: "the request did not arrive in time",
};
