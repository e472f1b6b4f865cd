import type { IncomingHttpHeaders } from "node:http";
import type { ServerHttp2Stream } from "node:http2";
import { create, type DescMethod, isFieldSet, type Message } from "@bufbuild/protobuf";
import { Code, type HandlerContext, type MethodImplSpec } from "@connectrpc/connect";
import type { parseTimeout } from "@connectrpc/connect/protocol-grpc";
import type { Call } from "../calls/call.ts";
import type { CallHead, HttpCall, TransportName } from "../calls/call-head.ts";
import type { Gate } from "../calls/gate.ts";
import { type Failure, malformedRequest } from "../failures.ts";
import type { Connection } from "../http/connection.ts";
import { dropRest, type HttpRequest, readBody } from "../http/request.ts";
import { toFailure } from "./connect-error.ts";

/**
 * Rejects a header that only plain JSON supports: its sender would mistake a second record for a
 * replay of the first.
 *
 * @throws {Failure} MALFORMED_REQUEST
 */
function refuseIdempotencyKey({ method, headers }: CallHead, input: Message): void {
  const requestId = method.input.field.requestId;
  if (headers["idempotency-key"] === undefined || !requestId || isFieldSet(input, requestId))
    return;
  const description = "the header Idempotency-Key is for plain JSON only: set request_id";
  throw malformedRequest(undefined, description);
}

export interface Rpc {
  readonly spec: MethodImplSpec;
  /** Whether anybody may call it. */
  readonly isPublic: boolean;
  /** The largest message to take, unpacked, in bytes. */
  readonly maxBytes: number;
}

/** A unary method, whose implementation needs only what a {@link Call} has of a context. */
export interface UnaryRpc extends Rpc {
  readonly spec: Extract<MethodImplSpec, { kind: "unary" }> & {
    impl(
      input: Message,
      context: Pick<HandlerContext, "signal" | "values">,
    ): Message | Promise<Message>;
  };
}

/** The time limit that a client sets, in milliseconds, or why it cannot be read. */
export type Timeout = Partial<ReturnType<typeof parseTimeout>>;

/** @throws {Failure} MALFORMED_REQUEST: the client's time limit cannot be read */
export function checkTimeout({ error }: Timeout): void {
  if (error) throw malformedRequest(error, "the timeout is not in the protocol's format");
}

/** How one protocol writes a unary call on the wire, in every form. */
export interface Codec<Request, Response> {
  readonly transport: TransportName;
  /** How many bytes the body has besides its message. */
  readonly overhead?: number;
  readTimeout?(headers: IncomingHttpHeaders): Timeout;
  /** Describes the call as plain HTTP, where it is. */
  describe?(request: Request): HttpCall;
  /**
   * Reads the message from the body, now or later.
   *
   * @param maxBytes the largest message to unpack
   * @throws {Failure} the body is not one message
   */
  decode(
    method: DescMethod,
    body: Uint8Array,
    request: Request,
    call: Call,
    maxBytes: number,
  ): Message | Promise<Message>;
  reply(response: Response, output: Message, call: Call, request: Request): void | Promise<void>;
  fail(response: Response, failure: Failure, call: Call, request: Request): void;
}

/** Serves unary calls of every protocol, from request to reply. */
export function createUnary(gate: Gate) {
  return async <Request extends HttpRequest | ServerHttp2Stream, Response>(
    codec: Codec<Request, Response>,
    { spec, isPublic, maxBytes }: UnaryRpc,
    connection: Connection,
    headers: IncomingHttpHeaders,
    request: Request,
    response: Response & CallHead["response"],
  ): Promise<void> => {
    const { method } = spec;
    const { transport, overhead = 0 } = codec;
    const timeout = codec.readTimeout?.(headers) ?? {};
    const { timeoutMs } = timeout;
    const http = codec.describe?.(request);
    const head = { method, transport, isPublic, headers, connection, response, timeoutMs, http };
    const call = gate.begin(head);
    try {
      const admission = gate.admit(call);
      if (admission) await admission;
      checkTimeout(timeout);
      const body = await call.unlessAborted(readBody(request, maxBytes, overhead));
      const decoded = codec.decode(method, body, request, call, maxBytes);
      const input = decoded instanceof Promise ? await call.unlessAborted(decoded) : decoded;
      refuseIdempotencyKey(head, input);
      // An implementation may return a plain object instead of a message.
      const output = create(method.output, await spec.impl(input, call));
      call.startReplyTimer();
      await codec.reply(response, output, call, request);
    } catch (error) {
      const failure = call.recordFailure(toFailure(error));
      call.startReplyTimer();
      if (!call.isClosed) codec.fail(response, failure, call, request);
      // A body that missed its deadline is not waited for again.
      const goesOnMs = failure.code === Code.DeadlineExceeded ? 0 : undefined;
      dropRest(request, connection, goesOnMs);
    }
  };
}
