import { on } from "node:events";
import type { IncomingHttpHeaders, ServerResponse } from "node:http";
import type { DescMethod } from "@bufbuild/protobuf";
import {
  Code,
  ConnectError,
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
import { errorToJsonBytes } from "@connectrpc/connect/protocol-connect";
import { findTrailerError } from "@connectrpc/connect/protocol-grpc";
import { universalRequestFromNodeRequest } from "@connectrpc/connect-node";
import type { Call } from "../calls/call.ts";
import type { CallHead, TransportName } from "../calls/call-head.ts";
import type { Gate } from "../calls/gate.ts";
import { malformedRequest, reasonOf } from "../errors.ts";
import { createTurns } from "../event-loop.ts";
import type { Connection } from "../http/connection.ts";
import { authorityOf } from "../http/cross-origin.ts";
import { type HttpResponse, outputOf, send } from "../http/reply.ts";
import { dropRest, type HttpRequest, readBody } from "../http/request.ts";
import { decodeJson, type JsonOptions, readConnectTimeout } from "./connect.ts";
import { isGrpc, prefixBytes, readGrpcTimeout, sendStatus, unpackMessages } from "./grpc.ts";
import { httpError, jsonHeaders } from "./problem.ts";
import { binaryOptions, type Rpc, refuseIdempotencyKey } from "./unary.ts";

/** Key of the call in Connect's context values. */
export const callKey = createContextKey<Call>(undefined as never, { description: "call" });

/**
 * How many bytes of a request stream to pass to Connect at once: it unpacks every message in them,
 * each to many times its size, before it handles the first.
 */
const partBytes = 128;

/** How many calls to begin per turn of the event loop: each takes a fraction of a millisecond. */
const maxBegunAtOnce = 8;

/** Serves calls in any form, and streams, through Connect's own handlers. */
export function createConnectRoutes(
  gate: Gate,
  rpcs: Iterable<Rpc>,
  jsonOptions: JsonOptions,
  acceptCompression: Compression[],
) {
  // Separate queues, so that unauthenticated calls do not delay others.
  const takeTurn = { public: createTurns(maxBegunAtOnce), own: createTurns(maxBegunAtOnce) };
  const turnsOf = ({ isPublic }: Rpc) => (isPublic ? takeTurn.public : takeTurn.own);
  const router = createConnectRouter({
    requestGate({ values }) {
      const call = values.get(callKey);
      return recordFailure(call, () => gate.admit(call));
    },
    interceptors: [runCall],
    acceptCompression,
    binaryOptions,
  });
  for (const rpc of rpcs) {
    const { method, impl } = rpc.spec;
    const ofMethod = { readMaxBytes: rpc.maxBytes, jsonOptions: checkJson(method, jsonOptions) };
    router.rpc(method, impl as MethodImpl<never>, ofMethod);
  }
  const handlers = new Map(router.handlers.map((each) => [each.method, each]));

  /** The body of a request. A single message is read and unpacked here, for our limits and errors. */
  async function* readRequest(
    rpc: Rpc,
    req: HttpRequest,
    call: Call,
    compression: Compression | undefined,
  ) {
    if (isOneMessage(rpc)) {
      const { maxBytes } = rpc;
      const body = await call.unlessAborted(readBody(req, maxBytes, prefixBytes));
      await turnsOf(rpc)(() => call.isClosed);
      call.throwIfAborted();
      yield call.head.transport === "connect"
        ? ((await compression?.decompress(body, maxBytes)) ?? body)
        : await unpackMessages(
            rpc.spec.method,
            req.headers,
            body,
            compression,
            maxBytes,
            jsonOptions,
          );
      return;
    }
    const limits = { close: ["end", "close"], highWaterMark: 1, signal: call.signal };
    for await (const [bytes] of on(req, "data", limits)) {
      await turnsOf(rpc)(() => call.isClosed);
      call.throwIfAborted();
      for (let at = 0; at < bytes.length; at += partBytes) yield bytes.subarray(at, at + partBytes);
    }
  }

  return async (rpc: Rpc, connection: Connection, req: HttpRequest, res: HttpResponse) => {
    const isGone = () => outputOf(res).destroyed;
    await turnsOf(rpc)(isGone);
    // The client has left; no event would end the call.
    if (isGone()) return;
    const { isPublic } = rpc;
    const { method } = rpc.spec;
    const { headers } = req;
    if (!URL.canParse(`http://${authorityOf(headers)}`)) {
      if (!isPublic) throw httpError(400, "the Host of the request is not a name or an address");
      // Connect builds a URL from it, which nothing reads.
      headers[":authority" in headers ? ":authority" : "host"] = "localhost";
    }
    const transport = transportOf(headers);
    const { timeoutHeader, timeoutMs } = readTimeout({ transport, headers });
    const head = { method, transport, isPublic, headers, connection, response: res, timeoutMs };
    const call = gate.begin(head);
    call.values.set(callKey, call);
    const request = universalRequestFromNodeRequest(req, res, undefined, call.values);
    // With this header, Connect would set a timer of its own, whose errors have no reason.
    request.header.delete(timeoutHeader);
    // With this header, Connect would reject large messages before they are read, without a reason.
    request.header.delete("content-length");
    // A single message is unpacked here, those of streams by Connect.
    const encodingHeader = transport === "connect" ? "content-encoding" : "grpc-encoding";
    const encoding = isOneMessage(rpc) ? headers[encodingHeader] : undefined;
    const compression = acceptCompression.find(({ name }) => name === encoding);
    if (compression) request.header.delete(encodingHeader);
    const handler = handlers.get(method) as UniversalHandler;
    const input = recordStreamFailure(readRequest(rpc, req, call, compression), call);
    const universal = { ...request, body: input, signal: call.signal };
    const response = await recordFailure(call, () => handler(universal));
    if (transport !== "grpc") {
      const allow = handler.allowedMethods.join(", ");
      if (response.status === 405) {
        throw call.recordFailure(httpError(405, `the method must be ${allow}`, { allow }));
      }
      if (response.status === 415) throw call.recordFailure(httpError(415, mediaTypes));
      res.setHeader("cache-control", "no-store");
    }
    // Connect reports bytes that are not a message as an internal error.
    if (transport === "connect" && response.status === 500 && !call.wasInvoked && !call.failure) {
      const error = call.recordFailure(malformedRequest());
      send(res, 400, jsonHeaders, errorToJsonBytes(error, jsonOptions));
      return;
    }
    await sendReply(response, call, res);
    dropRest(req, connection);
  };
}

/**
 * Sends the reply to a call. The parts of a stream go one after the other: a waiting part takes
 * many times its size in memory, and a client may ask for thousands at once.
 */
async function sendReply(reply: UniversalServerResponse, call: Call, res: HttpResponse) {
  const { status, header = new Headers(), body = [], trailer } = reply;
  // Both types have these methods, under incompatible signatures.
  const response = res as ServerResponse;
  let isWritten: Promise<void> | undefined;
  for await (const part of recordStreamFailure(body, call)) {
    if (call.head.method.methodKind !== "unary") await isWritten;
    if (call.isClosed) return;
    if (!response.headersSent) response.writeHead(status, Object.fromEntries(header));
    isWritten = new Promise((resolve) => response.write(part, () => resolve()));
  }
  if (!call.wasInvoked && !call.failure) recordRefusal(reply, call);
  if (call.isClosed) return;
  if (!response.headersSent) {
    const { failure, head } = call;
    // Connect would send headers before an error's trailers; see {@link sendStatus}.
    if (head.transport === "grpc" && "stream" in res && failure?.code === Code.Unavailable) {
      sendStatus(res.stream, head.headers, failure);
      return;
    }
    response.writeHead(status, Object.fromEntries(header));
  }
  if (trailer) response.addTrailers(Object.fromEntries(trailer));
  response.end();
}

/**
 * JSON options that make Connect reject bodies with our errors: its own have no reason, and can
 * repeat the body. Its only hook for that is the text decoder, whose errors it passes on.
 */
function checkJson({ input }: DescMethod, options: JsonOptions): JsonOptions {
  const decode = (bytes = new Uint8Array()) => {
    decodeJson(input, bytes, options);
    return options.textDecoder.decode(bytes);
  };
  return { ...options, textDecoder: { decode } };
}

const mediaTypes =
  "the Content-Type, or the encoding of a GET, must be one of Connect, gRPC or binary gRPC-Web";

/** The client's timeout, and the name of its header. */
function readTimeout({ transport, headers }: Pick<CallHead, "transport" | "headers">) {
  const isConnect = transport === "connect";
  const timeoutHeader = isConnect ? "connect-timeout-ms" : "grpc-timeout";
  const read = isConnect ? readConnectTimeout : readGrpcTimeout;
  return { timeoutHeader, ...read(headers[timeoutHeader]) };
}

const runCall: Interceptor = (next) => async (req) => {
  const call = req.contextValues.get(callKey);
  call.wasInvoked = true;
  const res = await recordFailure(call, async () => {
    const { error } = readTimeout(call.head);
    if (error) throw malformedRequest(error, "the timeout is not in the protocol's format");
    if (!req.stream) refuseIdempotencyKey(call.head, req.message);
    call.throwIfAborted();
    return next(req);
  });
  if (!res.stream) {
    call.startReplyTimer();
    return res;
  }
  return { ...res, message: recordStreamFailure(res.message, call) };
};

/** Records failures of the work in its call; a fault becomes INTERNAL. */
async function recordFailure<T>(call: Call, work: () => T | Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    throw toFailure(call, error);
  }
}

async function* recordStreamFailure<T>(messages: AsyncIterable<T> | T[], call: Call) {
  try {
    yield* messages;
  } catch (error) {
    throw toFailure(call, error);
  }
}

function toFailure(call: Call, error: unknown): ConnectError {
  // Connect cannot send a message with unpaired surrogates, which only a request can contain.
  const failure = call.recordFailure(error instanceof URIError ? malformedRequest(error) : error);
  const reason = reasonOf(failure);
  if (call.head.transport === "connect" || reason === undefined) return failure;
  // Connect sends metadata as trailers. Others may fail with the same error.
  const { rawMessage, code, metadata, details, cause } = failure;
  const own = { ...Object.fromEntries(metadata), reason };
  return Object.assign(new ConnectError(rawMessage, code, own, [], cause), { details });
}

/** Records errors in the call that Connect itself replies with, such as for an unreadable message. */
function recordRefusal({ status, trailer = new Headers() }: UniversalServerResponse, call: Call) {
  // gRPC-Web and streams carry their status in the body.
  const code = findTrailerError(trailer)?.code ?? codeByStatus[status];
  // Any other code stands for a message that Connect cannot read.
  const isKnown = code === Code.Unimplemented || code === Code.ResourceExhausted;
  call.recordFailure(isKnown ? new ConnectError("refused by Connect", code) : malformedRequest());
}

function isOneMessage({ spec: { kind } }: Rpc): boolean {
  return kind === "unary" || kind === "server_streaming";
}

const codeByStatus: Record<number, Code> = { 429: Code.ResourceExhausted, 501: Code.Unimplemented };

function transportOf(headers: IncomingHttpHeaders): TransportName {
  if (isGrpc(headers)) return "grpc";
  return /^application\/grpc-web/i.test(headers["content-type"] ?? "") ? "grpc-web" : "connect";
}
