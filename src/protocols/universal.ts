import {
  createConnectRouter,
  createContextKey,
  createContextValues,
  type HandlerContext,
  type Interceptor,
  type MethodImpl,
  type MethodImplSpec,
} from "@connectrpc/connect";
import type { Compression, UniversalServerResponse } from "@connectrpc/connect/protocol";
import type { Call, TransportName } from "../calls/call.ts";
import type { Exchange } from "../http/exchange.ts";
import { FairQueue } from "../http/fair-queue.ts";
import { currentUsage } from "./compression.ts";
import { type JsonOptions, readConnectTimeout } from "./connect.ts";
import { translateFailure } from "./connect-failures.ts";
import { toFields } from "./fields.ts";
import { isGrpc, prefixBytes, readGrpcTimeout, sendTrailers, toTrailers } from "./grpc.ts";
import { httpError } from "./problem.ts";
import { binaryOptions, maxPublicBytes, type ProtocolOptions } from "./unary.ts";

/** A method, and whether anybody may call it. */
export interface Rpc {
  readonly spec: MethodImplSpec;
  readonly isPublic: boolean;
}

/** A request on its way through Connect's handlers, which know nothing of exchanges. */
interface UniversalRequest {
  readonly rpc: Rpc;
  readonly exchange: Exchange;
  /** Ends the request for them. */
  readonly controller: AbortController;
  readonly timeoutMs: number | undefined;
  /** Absent until it is admitted. */
  call?: Call;
  /** Whether its request could be decoded. */
  isDecoded: boolean;
}

/** Carries a request through Connect's handlers, in its context values. */
const requestKey = createContextKey<UniversalRequest | undefined>(undefined);

/**
 * What Connect's handlers keep for a call besides its messages, in bytes: low enough that one small
 * call by gRPC-Web fits into the share of its connection, whatever all keep. Streams are few, and not
 * counted.
 */
const handlerBytes = 12 * 1024;

/** Whether each request of a method has at most one message. */
const hasOneMessage = ({ spec: { kind } }: Rpc) => kind === "unary" || kind === "server_streaming";

/** What {@link createUniversal} needs. */
interface UniversalOptions extends ProtocolOptions {
  jsonOptions: JsonOptions;
  compressions: Compression[];
}

/** Creates the path of calls in any form, through Connect's own handlers. */
export function createUniversal(
  { gate, maxMessageBytes, jsonOptions, compressions }: UniversalOptions,
  rpcs: Iterable<Rpc>,
) {
  const limitOf = ({ isPublic }: Rpc) => (isPublic ? maxPublicBytes : maxMessageBytes);
  /**
   * The turns of streams of requests, which anybody may open: one reply of all of them at a time,
   * then some turns of the event loop for others.
   */
  const turns = new FairQueue(1, 1, 1);

  async function waitForTurn({ usage }: Exchange): Promise<void> {
    await usage.waitForTurn(turns, 1);
    turns.release(1);
  }

  /** Asks the gate about a call before any of its body is read. */
  async function admit(context: HandlerContext): Promise<void> {
    const { method, protocolName, values } = context;
    const request = values.get(requestKey) as UniversalRequest;
    const { rpc, exchange, controller, timeoutMs } = request;
    const transport = protocolName as TransportName;
    const head = { method, transport, exchange, values, timeoutMs };
    const call = rpc.isPublic ? gate.admitPublic(head) : await gate.admit(head);
    request.call = call;
    call.signal.addEventListener("abort", () => controller.abort(call.signal.reason));
    // Connect calls the context's abort(), which its type does not declare, with the error of a
    // failed call right before it serialises that error.
    const { abort } = context as HandlerContext & Pick<AbortController, "abort">;
    Object.assign(context, {
      timeoutMs: () => call.timeoutMs(),
      abort(reason: unknown) {
        translateFailure(reason, call, request.isDecoded, limitOf(rpc));
        abort(reason);
      },
    });
  }

  /** The body of a request; if it cannot be read, that is noted in its call. */
  async function* readBody(request: UniversalRequest) {
    const { rpc, exchange } = request;
    try {
      // As one part, since Connect keeps parts as they are, and small ones take a hundredfold.
      if (hasOneMessage(rpc)) {
        const body = await exchange.readBody(limitOf(rpc), prefixBytes);
        // It can take a while to unpack.
        request.call?.keepConnection();
        yield body;
      } else {
        yield* exchange.readChunks();
      }
    } catch (error) {
      throw request.call?.fail(error) ?? error;
    }
  }

  const router = createConnectRouter({
    interceptors: [noteFailures],
    acceptCompression: compressions,
    jsonOptions,
    binaryOptions,
    requestGate: admit,
  });
  for (const rpc of rpcs) {
    const { method, impl } = rpc.spec;
    router.rpc(method, impl as MethodImpl<never>, { readMaxBytes: limitOf(rpc) });
  }
  const handlers = new Map(router.handlers.map((each) => [each.requestPath, each]));

  return async (rpc: Rpc, exchange: Exchange): Promise<void> => {
    const { method, httpVersion, authority, path } = exchange;
    const handler = handlers.get(path);
    const url = `http://${authority}${exchange.url}`;
    if (handler === undefined || !URL.canParse(url)) {
      throw httpError(400, "the Host of the request is not a name or an address");
    }
    if (hasOneMessage(rpc)) exchange.usage.keep(handlerBytes);
    else exchange.stopBuffering();
    const controller = new AbortController();
    const header = exchange.toHeaders();
    const timeoutMs = takeTimeout(header);
    const request: UniversalRequest = { rpc, exchange, controller, timeoutMs, isDecoded: false };
    const { signal } = controller;
    const universalRequest = {
      httpVersion: httpVersion === "2" ? "2.0" : httpVersion,
      method,
      url,
      header,
      body: readBody(request),
      signal,
      contextValues: createContextValues().set(requestKey, request),
    };
    const response = await currentUsage.run(exchange.usage, handler, universalRequest);
    const { status } = response;
    // Connect refuses these before it asks the gate.
    if (status === 405 || status === 415) {
      const transport = isGrpc(exchange) ? "grpc" : "connect";
      const allow = handler.allowedMethods.join(", ");
      const error =
        status === 405
          ? httpError(405, `the method must be ${allow}`, { allow })
          : httpError(
              415,
              "the Content-Type, or the encoding of a GET, must be one of Connect, gRPC or binary gRPC-Web",
            );
      if (!rpc.isPublic) gate.refuse({ method: rpc.spec.method, transport, exchange }, error);
      if (transport === "connect") throw error;
    }
    const afterPart = hasOneMessage(rpc) ? undefined : () => waitForTurn(exchange);
    await currentUsage.run(exchange.usage, send, response, exchange, afterPart).catch((error) => {
      throw request.call?.fail(error) ?? error;
    });
  };
}

const noteFailures: Interceptor = (next) => async (req) => {
  const request = req.contextValues.get(requestKey) as UniversalRequest;
  const { spec, isPublic } = request.rpc;
  const call = request.call as Call;
  request.isDecoded = true;
  try {
    call.throwIfAborted();
    if (isPublic && spec.kind === "server_streaming") call.limitByClient();
    const res = await call.run(() => next(req));
    return res.stream ? { ...res, message: noteFailure(res.message, call) } : res;
  } catch (error) {
    throw call.fail(error);
  }
};

async function* noteFailure<T>(messages: AsyncIterable<T>, call: Call): AsyncIterable<T> {
  try {
    for await (const message of messages) {
      // Much of what was read at once may be left.
      call.throwIfAborted();
      yield message;
    }
  } catch (error) {
    throw call.fail(error);
  }
}

/**
 * Takes a valid timeout from the headers, in milliseconds. Connect then sets no timer beside the
 * call's own, which would end the call with an error of other details.
 */
function takeTimeout(header: Headers): number | undefined {
  const isGrpcOrWeb = /^application\/grpc/i.test(header.get("content-type") ?? "");
  const name = isGrpcOrWeb ? "grpc-timeout" : "connect-timeout-ms";
  const read = isGrpcOrWeb ? readGrpcTimeout : readConnectTimeout;
  const { timeoutMs } = read(header.get(name) ?? undefined);
  if (timeoutMs !== undefined) header.delete(name);
  return timeoutMs;
}

/** Sends what Connect replies, part by part. */
async function send(
  response: UniversalServerResponse,
  exchange: Exchange,
  afterPart?: () => Promise<void>,
): Promise<void> {
  const { status, header, trailer, body = [] } = response;
  const headers = toFields(header);
  if (!isGrpc(exchange)) headers["cache-control"] = "no-store";
  for await (const part of body) {
    if (exchange.isClosed) return;
    if (!exchange.headersSent) {
      exchange.usage.expectRoomFor(part.length);
      exchange.begin(status, headers, trailer && (() => toTrailers(trailer)));
    }
    await exchange.write(part);
    await afterPart?.();
  }
  if (exchange.headersSent) exchange.end();
  else if (trailer) sendTrailers(exchange, headers, trailer);
  else exchange.send(status, headers, "");
}
