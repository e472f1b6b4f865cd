import { on } from "node:events";
import type { IncomingHttpHeaders } from "node:http";
import type { Socket } from "node:net";
import {
  Code,
  ConnectError,
  createConnectRouter,
  createContextKey,
  createContextValues,
  type Interceptor,
  type MethodImpl,
} from "@connectrpc/connect";
import type { Compression, UniversalServerResponse } from "@connectrpc/connect/protocol";
import { codeFromHttpStatus } from "@connectrpc/connect/protocol-connect";
import { findTrailerError } from "@connectrpc/connect/protocol-grpc";
import {
  universalRequestFromNodeRequest,
  universalResponseToNodeResponse,
} from "@connectrpc/connect-node";
import type { Call, TransportName } from "../calls/call.ts";
import { readBody } from "../http/body.ts";
import type { HttpRequest, HttpResponse } from "../http/reply.ts";
import { malformedRequest } from "../service/errors.ts";
import { type JsonOptions, readConnectTimeout } from "./connect.ts";
import { prefixBytes, readGrpcTimeout } from "./grpc.ts";
import { httpError } from "./problem.ts";
import { binaryOptions, maxPublicBytes, type ProtocolOptions, type Rpc } from "./unary.ts";

/** Carries a call through Connect's handlers, in its context values. */
export const callKey = createContextKey<Call>(undefined as never, { description: "call" });

/** What {@link createUniversal} needs. */
interface UniversalOptions extends ProtocolOptions {
  jsonOptions: JsonOptions;
  compressions: Compression[];
}

/** Creates the path of calls in any form, and of streams, through Connect's own handlers. */
export function createUniversal(options: UniversalOptions, rpcs: Iterable<Rpc>) {
  const { gate, maxMessageBytes, jsonOptions, compressions: acceptCompression } = options;
  const maxBytesOf = ({ isPublic }: Rpc) => (isPublic ? maxPublicBytes : maxMessageBytes);
  const router = createConnectRouter({
    async requestGate({ values }) {
      const call = values.get(callKey);
      try {
        await gate.admit(call);
      } catch (error) {
        throw call.fail(error);
      }
    },
    interceptors: [noteFailures],
    acceptCompression,
    jsonOptions,
    binaryOptions,
  });
  for (const rpc of rpcs) {
    const { method, impl } = rpc.spec;
    router.rpc(method, impl as MethodImpl<never>, { readMaxBytes: maxBytesOf(rpc) });
  }
  const handlers = new Map(router.handlers.map((each) => [each.method, each]));

  /** The body of a request; a message alone comes as one part, so that its limits are the service's. */
  async function* readRequest(rpc: Rpc, req: HttpRequest, call: Call) {
    const { kind } = rpc.spec;
    try {
      if (kind === "unary" || kind === "server_streaming") {
        yield await call.untilEnd(readBody(req, maxBytesOf(rpc), prefixBytes));
        // From here on, a watch lasts as long as its client likes.
        if (rpc.isPublic && kind === "server_streaming") call.limitByClient();
        return;
      }
      const limits = { close: ["end", "close"], highWaterMark: 1, signal: call.signal };
      for await (const [part] of on(req, "data", limits)) yield part;
    } catch (error) {
      throw call.fail(error);
    }
  }

  return async (rpc: Rpc, socket: Socket, req: HttpRequest, res: HttpResponse): Promise<void> => {
    const { isPublic } = rpc;
    const { method } = rpc.spec;
    const { headers } = req;
    const controller = new AbortController();
    const values = createContextValues();
    const request = toUniversal(() => universalRequestFromNodeRequest(req, res, undefined, values));
    const transport = transportOf(headers);
    const timeoutMs = takeTimeout(request.header);
    // By it, Connect would refuse what is too large before it is read, with no reason.
    request.header.delete("content-length");
    const head = { method, transport, isPublic, headers, socket, response: res };
    const call = gate.begin({ ...head, timeoutMs, controller, values });
    values.set(callKey, call);
    const body = readRequest(rpc, req, call);
    const handler = handlers.get(method);
    const response = await handler?.({ ...request, body, signal: controller.signal });
    if (response === undefined) throw new Error(`${method.name} has no handler`);
    const allow = handler?.allowedMethods.join(", ") ?? "";
    if (response.status === 405 || response.status === 415) {
      const refusal = call.fail(refusalOf(response.status, allow));
      if (transport !== "grpc") throw refusal;
    }
    if (transport !== "grpc") res.setHeader("cache-control", "no-store");
    await universalResponseToNodeResponse(noteRefusal(response, call), res);
  };
}

/** Notes in its call what the implementation fails with; a fault becomes INTERNAL. */
const noteFailures: Interceptor = (next) => async (req) => {
  const call = req.contextValues.get(callKey);
  call.wasInvoked = true;
  try {
    const res = await call.run(() => next(req));
    if (res.stream) return { ...res, message: noteFailure(res.message, call) };
    call.replied();
    return res;
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

/** Notes in its call what Connect refuses itself, such as a message that it cannot read. */
function noteRefusal(response: UniversalServerResponse, call: Call): UniversalServerResponse {
  const { status, trailer, body = [] } = response;
  async function* follow() {
    yield* body;
    if (call.wasInvoked || call.failure) return;
    const inTrailer = trailer && findTrailerError(trailer);
    // gRPC-Web and streams have their status in the body.
    const code = status === 200 ? Code.InvalidArgument : codeFromHttpStatus(status);
    const refusal = inTrailer ?? new ConnectError("refused by Connect", code);
    // What Connect cannot read is a mistake of the client, whatever it calls that.
    const isFault = refusal.code === Code.Internal || refusal.code === Code.Unknown;
    call.fail(isFault ? malformedRequest() : refusal);
  }
  return { ...response, body: follow() };
}

function toUniversal<T>(convert: () => T): T {
  try {
    return convert();
  } catch {
    throw httpError(400, "the Host of the request is not a name or an address");
  }
}

function refusalOf(status: 405 | 415, allow: string): ConnectError {
  if (status === 405) return httpError(405, `the method must be ${allow}`, { allow });
  return httpError(
    415,
    "the Content-Type, or the encoding of a GET, must be one of Connect, gRPC or binary gRPC-Web",
  );
}

function transportOf({ "content-type": type = "" }: IncomingHttpHeaders): TransportName {
  const [, web] = /^application\/grpc(-web)?/i.exec(type) ?? [undefined, undefined];
  return /^application\/grpc/i.test(type) ? (web ? "grpc-web" : "grpc") : "connect";
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
