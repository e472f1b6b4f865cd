import {
  ConnectError,
  createConnectRouter,
  createContextKey,
  createContextValues,
  type HandlerContext,
  type Interceptor,
  type MethodImpl,
  type MethodImplSpec,
} from "@connectrpc/connect";
import type { Compression, UniversalServerResponse } from "@connectrpc/connect/protocol";
import type { Call } from "../calls/call.ts";
import type { Exchange } from "../http/exchange.ts";
import { type JsonOptions, parseConnectTimeout } from "./connect.ts";
import { translateFailure } from "./connect-failures.ts";
import { toFields } from "./fields.ts";
import {
  isGrpc,
  parseGrpcTimeout,
  prefixBytes,
  sendStatus,
  sendTrailers,
  toTrailers,
} from "./grpc.ts";
import { httpError } from "./problem.ts";
import { maxOpenBytes, type Rpc, type UnaryOptions } from "./unary.ts";

/** A request on its way through Connect's handlers, which know nothing of exchanges. */
interface UniversalRequest {
  readonly rpc: Rpc<MethodImplSpec>;
  readonly exchange: Exchange;
  /** Ends the request for them. */
  readonly controller: AbortController;
  readonly timeoutMs: number | undefined;
  /** Absent until it is admitted. */
  call?: Call;
  /** Whether its request could be decoded. */
  isDecoded: boolean;
}

const requestKey = createContextKey<UniversalRequest | undefined>(undefined);

/** What {@link createUniversal} needs. */
interface UniversalOptions extends UnaryOptions {
  jsonOptions: JsonOptions;
  compressions: Compression[];
}

/** Makes what serves calls of every form by Connect's own handlers. */
export function createUniversal(
  { gate, maxMessageBytes, jsonOptions, compressions }: UniversalOptions,
  rpcs: Iterable<Rpc<MethodImplSpec>>,
) {
  const limitOf = ({ isOpen }: Rpc<MethodImplSpec>) => (isOpen ? maxOpenBytes : maxMessageBytes);

  /** Asks the gate about a call before any of its body is read. */
  async function admit(context: HandlerContext): Promise<void> {
    const { method, protocolName, values } = context;
    const request = required(values.get(requestKey));
    const { rpc, exchange, controller, timeoutMs } = request;
    const transport =
      protocolName === "grpc" || protocolName === "grpc-web" ? protocolName : "connect";
    const head = { method, transport, exchange, values, timeoutMs } as const;
    const call = rpc.isOpen ? gate.open(head) : await gate.admit(head);
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

  /** The body of a request, whose end by the call is noted. */
  async function* readBody(request: UniversalRequest) {
    const { rpc, exchange } = request;
    try {
      // As one part, since Connect keeps parts as they are, and small ones take a hundredfold.
      if (rpc.spec.kind === "unary" || rpc.spec.kind === "server_streaming") {
        yield await exchange.readBody(limitOf(rpc), prefixBytes);
      } else {
        yield* exchange.readChunks();
      }
    } catch (error) {
      throw request.call?.fail(error) ?? error;
    }
  }

  const options = {
    interceptors: [noteFailures],
    acceptCompression: compressions,
    jsonOptions,
    requestGate: admit,
  };
  const router = createConnectRouter({ ...options, readMaxBytes: maxMessageBytes });
  const openRouter = createConnectRouter({ ...options, readMaxBytes: maxOpenBytes });
  for (const { spec, isOpen } of rpcs) {
    (isOpen ? openRouter : router).rpc(spec.method, spec.impl as MethodImpl<never>);
  }
  const handlers = new Map(
    [...router.handlers, ...openRouter.handlers].map((each) => [each.requestPath, each]),
  );

  return async (rpc: Rpc<MethodImplSpec>, exchange: Exchange): Promise<void> => {
    const { method, httpVersion, authority, path } = exchange;
    const handler = handlers.get(path);
    const url = `http://${authority}${exchange.url}`;
    if (handler === undefined || !URL.canParse(url)) {
      throw httpError(400, "the Host of the request is not a name or an address");
    }
    if (rpc.isOpen && rpc.spec.kind !== "unary") {
      try {
        gate.admitStream(rpc.spec.method, exchange);
      } catch (error) {
        fail(exchange, error);
        return;
      }
    }
    const controller = new AbortController();
    const header = exchange.toHeaders();
    const timeoutMs = takeTimeout(header);
    const request: UniversalRequest = { rpc, exchange, controller, timeoutMs, isDecoded: false };
    const response = await handler({
      httpVersion: httpVersion === "2" ? "2.0" : httpVersion,
      method,
      url,
      header,
      body: readBody(request),
      signal: controller.signal,
      contextValues: createContextValues().set(requestKey, request),
    });
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
      if (!rpc.isOpen) gate.refuse({ method: rpc.spec.method, transport, exchange }, error);
      if (transport === "connect") throw error;
    }
    await send(response, exchange).catch((error) => {
      fail(exchange, request.call?.fail(error) ?? error);
    });
  };
}

/** Replies to gRPC, in its own form, with an error that Connect's handlers know nothing of. */
function fail(exchange: Exchange, error: unknown): void {
  if (exchange.isBegun || !isGrpc(exchange) || !(error instanceof ConnectError)) throw error;
  sendStatus(exchange, error);
}

const noteFailures: Interceptor = (next) => async (req) => {
  const request = required(req.contextValues.get(requestKey));
  const { spec, isOpen } = request.rpc;
  const { timeoutMs } = request;
  const call = required(request.call);
  request.isDecoded = true;
  try {
    call.throwIfEnded();
    // Once its request is there, a watch lasts as long as its client waits.
    if (isOpen && spec.kind === "server_streaming") call.limit(timeoutMs ?? Infinity);
    const res = await call.run(() => next(req));
    return res.stream ? { ...res, message: noteFailure(res.message, call) } : res;
  } catch (error) {
    throw call.fail(error);
  }
};

async function* noteFailure<T>(messages: AsyncIterable<T>, call: Call): AsyncIterable<T> {
  try {
    yield* messages;
  } catch (error) {
    throw call.fail(error);
  }
}

/** What every request has that Connect's handlers are given. */
function required<T>(value: T | undefined): T {
  if (value === undefined) throw new Error("the call came by no exchange");
  return value;
}

/**
 * Takes a valid timeout from the headers, in milliseconds. Connect then sets no timer beside the
 * call's own, which would end the call with an error of other details.
 */
function takeTimeout(header: Headers): number | undefined {
  const isGrpc = header.get("content-type")?.startsWith("application/grpc");
  const name = isGrpc ? "grpc-timeout" : "connect-timeout-ms";
  const timeout = header.get(name) ?? "";
  const timeoutMs = isGrpc ? parseGrpcTimeout(timeout) : parseConnectTimeout(timeout);
  if (timeoutMs !== undefined) header.delete(name);
  return timeoutMs;
}

/** Sends what Connect replies, part by part. */
async function send(response: UniversalServerResponse, exchange: Exchange): Promise<void> {
  const { status, header, trailer, body = [] } = response;
  const headers = toFields(new Headers(header));
  if (!isGrpc(exchange)) headers["cache-control"] = "no-store";
  for await (const part of body) {
    if (exchange.isClosed) return;
    if (!exchange.isBegun) {
      exchange.usage.expectRoomFor(part.length);
      exchange.begin(status, headers, trailer && (() => toTrailers(trailer)));
    }
    await exchange.write(part);
  }
  if (exchange.isBegun) exchange.end();
  else if (trailer) sendTrailers(exchange, headers, trailer);
  else exchange.send(status, headers, "");
}
