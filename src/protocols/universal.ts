import type { JsonReadOptions, JsonWriteOptions } from "@bufbuild/protobuf";
import {
  Code,
  ConnectError,
  createConnectRouter,
  createContextKey,
  createContextValues,
  type HandlerContext,
  type Interceptor,
  type MethodImpl,
  type MethodImplSpec,
} from "@connectrpc/connect";
import type { UniversalServerResponse } from "@connectrpc/connect/protocol";
import { compressionBrotli, compressionGzip } from "@connectrpc/connect-node";
import { type Call, callOf } from "../calls/call.ts";
import type { Exchange } from "../http/exchange.ts";
import { malformedRequest, messageTooLarge } from "../service/errors.ts";
import { toFields } from "./fields.ts";
import { isGrpc, sendStatus, sendTrailers, toTrailers } from "./grpc.ts";
import { httpError } from "./problem.ts";
import { type Codec, maxOpenBytes, type Rpc, type UnaryOptions } from "./unary.ts";

/** What {@link createUniversal} serves, and within which limits. */
export interface UniversalOptions extends UnaryOptions {
  rpcs: ReadonlyMap<string, Rpc<MethodImplSpec>>;
  jsonOptions: Partial<JsonReadOptions & JsonWriteOptions>;
  connectCodec: Codec;
}

/** A call on its way through Connect's handlers, which know nothing of exchanges. */
interface Passage {
  readonly exchange: Exchange;
  readonly maxBodyBytes: number;
  /** Ends the request for them. */
  readonly controller: AbortController;
  /** Whether the gate was asked about it. */
  wasAsked: boolean;
  call?: Call;
  /** Whether its request could be decoded. */
  isDecoded: boolean;
  /** Why it failed, where they could reply only that it did. */
  failure?: ConnectError;
}

const passageKey = createContextKey<Passage | undefined>(undefined);

/** Makes what serves calls of every form by Connect's own handlers. */
export function createUniversal(options: UniversalOptions) {
  const { rpcs, gate, maxMessageBytes, tooLarge, jsonOptions, connectCodec } = options;

  /** Asks the gate about a call before any of its body is read. */
  async function enter(context: HandlerContext): Promise<void> {
    const { method, protocolName, values } = context;
    const passage = passageOf(values.get(passageKey));
    const { exchange, controller } = passage;
    passage.wasAsked = true;
    const transport =
      protocolName === "grpc" || protocolName === "grpc-web" ? protocolName : "connect";
    const head = { method, transport, exchange, values, timeoutMs: context.timeoutMs() } as const;
    const isOpen = rpcs.get(exchange.path)?.isOpen;
    const call = isOpen ? gate.open(head) : await gate.admit(head);
    passage.call = call;
    call.signal.addEventListener("abort", () => controller.abort(call.signal.reason));
    // A context is aborted, which its type does not tell, by what its call fails of, right before
    // that is written down.
    const { abort } = context as HandlerContext & Pick<AbortController, "abort">;
    Object.assign(context, {
      abort(reason: unknown) {
        explain(passage, call, reason);
        abort(reason);
      },
    });
  }

  /** Turns an error of Connect itself into one of the service, and notes it. */
  function explain(passage: Passage, call: Call, error: unknown): void {
    // Of these, the service's own are noted, and those of signals are no failures yet.
    if (!(error instanceof Error) || call.failure !== undefined || call.signal.aborted) return;
    if (error instanceof ConnectError && error.code === Code.DeadlineExceeded) return;
    if (!(error instanceof ConnectError)) {
      if (error.name === "AbortError") return;
      passage.failure = call.fail(passage.isDecoded ? error : malformedRequest(error));
    } else if (passage.isDecoded) {
      turnInto(error, call.fail(error.cause ?? new Error(error.message)));
    } else if (error.code === Code.ResourceExhausted) {
      turnInto(error, call.fail(tooLarge()));
    } else if (error.cause !== undefined || error.rawMessage.startsWith("parse binary")) {
      turnInto(error, call.fail(malformedRequest(error.cause)));
    } else {
      // The protocols have codes and words of their own for these mistakes of a client.
      call.fail(error.code === Code.Internal ? malformedRequest() : error);
    }
  }

  const router = createConnectRouter({
    interceptors: [noteFailures],
    acceptCompression: [compressionGzip, compressionBrotli],
    readMaxBytes: maxMessageBytes,
    jsonOptions,
    requestGate: enter,
  });
  for (const { spec } of rpcs.values()) router.rpc(spec.method, spec.impl as MethodImpl<never>);
  const handlers = new Map(router.handlers.map((handler) => [handler.requestPath, handler]));

  return async (exchange: Exchange): Promise<void> => {
    const { method, httpVersion, authority, path } = exchange;
    const handler = handlers.get(path);
    const url = `http://${authority}${exchange.url}`;
    if (handler === undefined || !URL.canParse(url)) {
      throw httpError(400, "the Host of the request is not a name or an address");
    }
    const rpc = rpcs.get(path);
    if (rpc?.isOpen && rpc.spec.kind !== "unary") {
      try {
        gate.admitStream(rpc.spec.method, exchange);
      } catch (error) {
        if (!isGrpc(exchange)) throw error;
        sendStatus(exchange, undefined, error as ConnectError);
        return;
      }
    }
    const controller = new AbortController();
    const passage: Passage = {
      exchange,
      maxBodyBytes:
        rpc?.isOpen && rpc.spec.kind === "unary" ? maxOpenBytes : Number.POSITIVE_INFINITY,
      controller,
      wasAsked: false,
      isDecoded: false,
    };
    const response = await handler({
      httpVersion: httpVersion === "2" ? "2.0" : httpVersion,
      method,
      url,
      header: toRequestHeader(exchange),
      body: readBody(passage),
      signal: controller.signal,
      contextValues: createContextValues().set(passageKey, passage),
    });
    const { call, failure } = passage;
    if (failure !== undefined && call?.protocolName === "connect" && response.status !== 200) {
      connectCodec.fail(exchange, failure, call);
      return;
    }
    if (!passage.wasAsked && rpc?.isOpen === false) {
      note(rpc.spec, exchange, response.status);
    }
    await send(response, exchange);
  };

  /** Counts a call that Connect refused before it asked the gate. */
  function note({ method }: MethodImplSpec, exchange: Exchange, status: number): void {
    const transport = isGrpc(exchange) ? "grpc" : "connect";
    const error = httpError(status === 415 ? 415 : 405, "the form of the request is not served");
    gate.refuse({ method, transport, exchange }, error);
  }
}

const noteFailures: Interceptor = (next) => async (req) => {
  const call = callOf(req.contextValues);
  const passage = passageOf(req.contextValues.get(passageKey));
  passage.isDecoded = true;
  try {
    call.throwIfEnded();
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

function passageOf(passage: Passage | undefined): Passage {
  if (passage === undefined) throw new Error("the call came by no exchange");
  return passage;
}

/** The body of a request, whose end by the call is noted. */
async function* readBody(passage: Passage): AsyncIterable<Uint8Array> {
  const { exchange, maxBodyBytes } = passage;
  let bytes = 0;
  try {
    for await (const chunk of exchange.readChunks()) {
      bytes += chunk.length;
      if (bytes > maxBodyBytes) throw messageTooLarge(maxBodyBytes);
      yield chunk;
    }
  } catch (error) {
    throw passage.call?.fail(error) ?? error;
  }
}

/** The headers of a request, less timeouts that are too long for the timers of Connect. */
function toRequestHeader(exchange: Exchange): Headers {
  const header = exchange.toHeaders();
  if (Number(header.get("connect-timeout-ms")) >= 2 ** 31) header.delete("connect-timeout-ms");
  if (/^\d{3,8}H|\d{5,8}M|\d{7,8}S$/.test(header.get("grpc-timeout") ?? "")) {
    header.delete("grpc-timeout");
  }
  return header;
}

/** Makes an error that is about to be written down another one. */
function turnInto(error: ConnectError, { code, rawMessage, message, details }: ConnectError): void {
  Object.assign(error, { code, rawMessage, message, details });
}

/** Sends what Connect replies, part by part. */
async function send(response: UniversalServerResponse, exchange: Exchange): Promise<void> {
  const { status, header, trailer } = response;
  const headers = { ...toFields(new Headers(header)), "cache-control": "no-store" };
  const parts = response.body?.[Symbol.asyncIterator]();
  try {
    let part = await parts?.next();
    if (part === undefined || part.done) {
      if (trailer) sendTrailers(exchange, headers, trailer);
      else exchange.send(status, headers, "");
      return;
    }
    if (exchange.isClosed) return;
    exchange.expectRoom(part.value.length);
    exchange.begin(status, headers, trailer && (() => toTrailers(trailer)));
    for (; part && !part.done; part = await parts?.next()) await exchange.write(part.value);
    exchange.end();
  } finally {
    parts?.return?.()?.catch(() => {});
  }
}
