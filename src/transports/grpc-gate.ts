import { constants, type ServerHttp2Stream } from "node:http2";
import { createContextValues } from "@connectrpc/connect";
import { ServerInterceptingCall, type ServerInterceptor, status } from "@grpc/grpc-js";
import type { Gate } from "../calls/gate.ts";
import { contextValuesKey, toGrpcStatus } from "./grpc-adapter.ts";

/** For how long a client may take to read the answer to a unary call, in milliseconds. */
const answerTimeoutMs = 30_000;

/** What {@link createGateInterceptor} needs. */
export interface GateInterceptorOptions {
  gate: Gate;
  /** Whether the gate has a say in a method, given its path `/package.Service/Method`. */
  isGated(path: string): boolean;
  /** For how long a request that is one message may be on its way, in milliseconds. */
  requestTimeoutMs: number;
}

/**
 * Asks the gate about every call when its headers are there, gives the place back when
 * its stream has closed, and closes streams on which a unary call does not get on.
 */
export function createGateInterceptor(options: GateInterceptorOptions): ServerInterceptor {
  const { gate, isGated, requestTimeoutMs } = options;
  return (method, call) => {
    // grpc-js has no public way to its stream, whose end is the only sign that an answer
    // has left, and which it leaves open if the client does not end its side.
    const stream = Reflect.get(call, "stream") as ServerHttp2Stream;
    const isUnary = !method.requestStream && !method.responseStream;
    let timer: NodeJS.Timeout | undefined;

    const startTimer = (ms: number, onTimeout: () => void) => {
      clearTimeout(timer);
      if (isUnary) timer = setTimeout(onTimeout, ms);
    };
    const refuse = (reason: Parameters<typeof call.sendStatus>[0]) => {
      call.sendStatus(reason);
      stream.close(constants.NGHTTP2_NO_ERROR);
    };

    return new ServerInterceptingCall(call, {
      start(next) {
        stream.once("close", () => clearTimeout(timer));
        startTimer(requestTimeoutMs, () => {
          refuse({ code: status.DEADLINE_EXCEEDED, details: "the request did not arrive in time" });
        });
        next({
          onReceiveMetadata(metadata, next) {
            if (isGated(method.path)) {
              try {
                stream.once("close", gate.enter());
              } catch (error) {
                refuse(toGrpcStatus(error));
                return;
              }
            }
            metadata.setOpaque(contextValuesKey, createContextValues());
            next(metadata);
          },
          onReceiveHalfClose(next) {
            startTimer(requestTimeoutMs + answerTimeoutMs, () => {
              stream.close(constants.NGHTTP2_CANCEL);
            });
            next();
          },
        });
      },
      sendStatus(answer, next) {
        // grpc-js says "OK" of a success, which has no message by the protocol.
        next(answer.code === status.OK ? { ...answer, details: "" } : answer);
      },
    });
  };
}
