import { constants, type ServerHttp2Stream } from "node:http2";
import type { DescMethod } from "@bufbuild/protobuf";
import { ConnectError } from "@connectrpc/connect";
import { ServerInterceptingCall, type ServerInterceptor, status } from "@grpc/grpc-js";
import type { Call } from "../calls/call.ts";
import type { Gate } from "../calls/gate.ts";
import { callOpaqueKey, toGrpcStatus } from "./grpc-adapter.ts";

/** For how long a client may take to read the answer to a unary call, in milliseconds. */
const answerTimeoutMs = 30_000;

type Status = Parameters<ServerInterceptingCall["sendStatus"]>[0];

const lateRequest = {
  code: status.DEADLINE_EXCEEDED,
  details: "the request did not arrive in time",
};

/** What {@link createGateInterceptor} needs. */
export interface GateInterceptorOptions {
  gate: Gate;
  /** The methods in which it has a say, by their paths `/package.Service/Method`. */
  gated: ReadonlyMap<string, DescMethod>;
  /** For how long a request that is one message may be on its way, in milliseconds. */
  requestTimeoutMs: number;
}

/**
 * Asks the gate about every call when its headers are there, gives the place back when
 * its stream has closed, and closes streams on which a unary call does not get on.
 */
export function createGateInterceptor(options: GateInterceptorOptions): ServerInterceptor {
  const { gate, gated, requestTimeoutMs } = options;
  return (definition, base) => {
    // grpc-js has no public way to its stream, whose end is the only sign that an answer
    // has left, and which it leaves open if the client does not end its side.
    const stream = Reflect.get(base, "stream") as ServerHttp2Stream;
    const isUnary = !definition.requestStream && !definition.responseStream;
    const method = gated.get(definition.path);
    let call: Call | undefined;
    let isAnswered = false;
    let timer: NodeJS.Timeout | undefined;

    const startTimer = (ms: number, onTimeout: () => void) => {
      clearTimeout(timer);
      if (isUnary) timer = setTimeout(onTimeout, ms);
    };
    const refuse = (reason: Status) => {
      base.sendStatus(reason);
      stream.close(constants.NGHTTP2_NO_ERROR);
    };

    return new ServerInterceptingCall(base, {
      start(next) {
        stream.once("close", () => clearTimeout(timer));
        startTimer(requestTimeoutMs, () => {
          refuse(noteFailure(call, lateRequest));
        });
        next({
          onReceiveMetadata(metadata, next) {
            const { socket } = stream.session ?? {};
            if (method === undefined || socket === undefined) {
              next(metadata);
              return;
            }
            gate
              .enter({
                method,
                transport: "grpc",
                socket,
                answer: stream,
                hasLeft: () => isAnswered && stream.rstCode === constants.NGHTTP2_NO_ERROR,
                header: (name) => metadata.get(name)[0]?.toString(),
              })
              .then(
                (entered) => {
                  call = entered;
                  metadata.setOpaque(callOpaqueKey, call);
                  next(metadata);
                },
                (error) => refuse(toGrpcStatus(error)),
              );
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
        isAnswered = true;
        // grpc-js says "OK" of a success, which has no message by the protocol.
        next(answer.code === status.OK ? { ...answer, details: "" } : noteFailure(call, answer));
      },
    });
  };
}

/** Notes a failure that grpc-js itself has found; those of the service are noted before. */
function noteFailure(call: Call | undefined, answer: Status): Status {
  call?.fail(call.failure ?? new ConnectError(answer.details ?? "", answer.code as number));
  return answer;
}
