import { on } from "node:events";
import {
  type ConnectError,
  createConnectRouter,
  createContextKey,
  type Interceptor,
  type MethodImpl,
} from "@connectrpc/connect";
import type {
  Compression,
  UniversalHandler,
  UniversalServerResponse,
} from "@connectrpc/connect/protocol";
import type { Call } from "../calls/call.ts";
import type { Gate } from "../calls/gate.ts";
import { malformedRequest } from "../failures.ts";
import type { Connection } from "../http/connection.ts";
import type { HttpResponse } from "../http/reply.ts";
import { dropRest, type HttpRequest, readBody } from "../http/request.ts";
import { createTurns } from "../turns.ts";
import { toConnectError, toFailure } from "./connect-error.ts";
import { prefixBytes } from "./grpc.ts";
import { binaryOptions, type JsonOptions } from "./messages.ts";
import { type Codec, checkTimeout, type Rpc, type Timeout } from "./unary.ts";

export const callKey = createContextKey<Call>(undefined as never, { description: "call" });

/**
 * How many bytes of a request stream to pass to Connect at once: it unpacks every message in them,
 * each to many times its size, before it handles the first.
 */
const partBytes = 128;

/** How many streams to begin or go on with per turn of the event loop: each takes a fraction of a millisecond. */
const maxServedAtOnce = 8;

/** Headers that Connect does not get: it would set a timer of its own, whose errors have no reason. */
const ownHeaders = /^:|^(grpc-timeout|connect-timeout-ms)$/;

/** Serves streams, such as those of reflection, by Connect's own handlers. */
export function createStreams(
  gate: Gate,
  rpcs: Iterable<Rpc>,
  jsonOptions: JsonOptions,
  acceptCompression: Compression[],
) {
  const takeTurn = createTurns(maxServedAtOnce);
  const router = createConnectRouter({
    async requestGate({ values }) {
      const call = values.get(callKey);
      await recordFailure(call, () => gate.admit(call));
      await takeTurn(() => call.isClosed);
    },
    interceptors: [recordFailures],
    acceptCompression,
    binaryOptions,
    jsonOptions,
  });
  for (const { spec, maxBytes: readMaxBytes } of rpcs) {
    if (spec.kind !== "unary") {
      router.rpc(spec.method, spec.impl as MethodImpl<never>, { readMaxBytes });
    }
  }
  const handlers = new Map(router.handlers.map((each) => [each.method, each]));

  async function* readRequest(
    { spec, maxBytes }: Rpc,
    req: HttpRequest,
    call: Call,
    timeout: Timeout,
  ) {
    checkTimeout(timeout);
    if (spec.kind === "server_streaming") {
      yield await call.unlessAborted(readBody(req, maxBytes, prefixBytes));
      return;
    }
    const limits = { close: ["end", "close"], highWaterMark: 1, signal: call.signal };
    for await (const [bytes] of on(req, "data", limits)) {
      await takeTurn(() => call.isClosed);
      call.throwIfAborted();
      for (let at = 0; at < bytes.length; at += partBytes) yield bytes.subarray(at, at + partBytes);
    }
  }

  return async (
    { transport, readTimeout }: Pick<Codec<never, never>, "transport" | "readTimeout">,
    rpc: Rpc,
    connection: Connection,
    req: HttpRequest,
    res: HttpResponse,
  ) => {
    const { isPublic } = rpc;
    const { method } = rpc.spec;
    const { headers } = req;
    const timeout = readTimeout?.(headers) ?? {};
    const { timeoutMs } = timeout;
    const head = { method, transport, isPublic, headers, connection, response: res, timeoutMs };
    const call = gate.begin(head);
    call.values.set(callKey, call);
    const header = new Headers();
    for (const [name, value] of Object.entries(headers)) {
      if (!ownHeaders.test(name)) header.set(name, String(value));
    }
    const handle = handlers.get(method) as UniversalHandler;
    const reply = await handle({
      httpVersion: req.httpVersion,
      method: "POST",
      url: String(req.url),
      header,
      body: readRequest(rpc, req, call, timeout),
      signal: call.signal,
      contextValues: call.values,
    });
    await sendReply(reply, call, res);
    dropRest(req, connection);
  };
}

/**
 * Sends the parts of a reply one after the other: a waiting part takes many times its size in memory,
 * and a client may ask for thousands at once.
 */
async function sendReply(reply: UniversalServerResponse, call: Call, response: HttpResponse) {
  const { status, header = new Headers(), body = [], trailer } = reply;
  response.writeHead(status, Object.fromEntries(header));
  for await (const part of body) {
    if (call.isClosed) return;
    await new Promise<void>((resolve) => response.write(part, () => resolve()));
  }
  if (trailer) response.addTrailers(Object.fromEntries(trailer));
  response.end();
}

const recordFailures: Interceptor = (next) => async (req) => {
  const call = req.contextValues.get(callKey);
  const res = await recordFailure(call, () => next(req));
  return res.stream ? { ...res, message: recordStreamFailure(res.message, call) } : res;
};

/** Records why the work in a call fails; a fault becomes INTERNAL. */
async function recordFailure<T>(call: Call, work: () => T | Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    throw record(call, error);
  }
}

async function* recordStreamFailure<T>(messages: AsyncIterable<T>, call: Call) {
  try {
    yield* messages;
  } catch (error) {
    throw record(call, error);
  }
}

function record(call: Call, error: unknown): ConnectError {
  // Connect cannot send a message with unpaired surrogates, which only a request can contain.
  const sendable = String(error).isWellFormed() ? error : malformedRequest(error);
  const failure = call.recordFailure(toFailure(sendable));
  const reply = toConnectError(failure);
  // Connect sends metadata as trailers; its own protocol has the reason in the details alone.
  if (failure.reason && call.head.transport !== "connect") {
    reply.metadata.set("reason", failure.reason);
  }
  return reply;
}
