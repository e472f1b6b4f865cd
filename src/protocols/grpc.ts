import type { OutgoingHttpHeaders } from "node:http";
import { type DescMethod, fromBinary, isMessage, type Message, toBinary } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { parseTimeout, setTrailerStatus } from "@connectrpc/connect/protocol-grpc";
import { InvestorSchema } from "../../gen/investor/v1/investor_pb.js";
import type { Call } from "../calls/call.ts";
import type { Exchange } from "../http/exchange.ts";
import { serialise } from "../investor.ts";
import { malformedRequest } from "../service/errors.ts";
import { toFields } from "./fields.ts";
import { binaryOptions, type Codec } from "./unary.ts";

/** What stands before a message: whether it is compressed, and its length. */
export const prefixBytes = 5;

/** A timeout as gRPC writes it; it has no maximum, since a call has a limit of its own. */
export function readGrpcTimeout(text: string | undefined) {
  return parseTimeout(text ?? null, Number.POSITIVE_INFINITY);
}

/** Whether a request is one of gRPC, of any form. */
export function isGrpc({ headers }: Exchange): boolean {
  return /^application\/grpc(?!-web)/i.test(headers["content-type"] ?? "");
}

/** Whether a request has the form that most unary calls of gRPC have: not compressed protobuf. */
export function isCommonGrpc({ method, headers, httpVersion }: Exchange): boolean {
  const { "content-type": type, "grpc-timeout": timeout } = headers;
  return (
    (type === "application/grpc" || type === "application/grpc+proto") &&
    method === "POST" &&
    httpVersion === "2" &&
    (headers["grpc-encoding"] ?? "identity") === "identity" &&
    readGrpcTimeout(timeout).error === undefined
  );
}

/**
 * The codec for the common form of a unary call by gRPC
 * (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md).
 */
export const grpcCodec: Codec = {
  transport: "grpc",
  overhead: prefixBytes,

  timeoutMs: ({ headers }) => readGrpcTimeout(headers["grpc-timeout"]).timeoutMs,

  decode({ input }, body, call) {
    if (body.length === 0) throw new ConnectError("there is no message", Code.Unimplemented);
    if (body.length < prefixBytes) throw malformedRequest();
    const flags = body[0];
    const end = prefixBytes + new DataView(body.buffer, body.byteOffset).getUint32(1);
    if (flags === 1) {
      // The protocol has its own code for this mistake of a client.
      call.fail(malformedRequest());
      throw new ConnectError("the message is compressed by no named encoding", Code.Internal);
    }
    if (flags !== 0 || body.length < end) throw malformedRequest();
    if (body.length > end) {
      throw new ConnectError("there is more than one message", Code.Unimplemented);
    }
    try {
      return fromBinary(input, body.subarray(prefixBytes), binaryOptions);
    } catch (error) {
      throw malformedRequest(error);
    }
  },

  reply(exchange, output, call) {
    exchange.send(200, headersOf(exchange, call), envelop(call.method, output), trailersOf(call));
  },

  fail: sendStatus,
};

/** A message and what stands before it. */
export function envelop(method: DescMethod, output: Message): Buffer {
  const message = isMessage(output, InvestorSchema)
    ? serialise(output)
    : toBinary(method.output, output);
  const bytes = Buffer.allocUnsafe(prefixBytes + message.length);
  bytes.writeUInt8(0, 0);
  bytes.writeUInt32BE(message.length, 1);
  bytes.set(message, prefixBytes);
  return bytes;
}

/** The headers of a reply. */
export function headersOf(exchange: Exchange, call: Call | undefined): OutgoingHttpHeaders {
  const headers = toFields(call?.header);
  headers["content-type"] = exchange.headers["content-type"];
  return headers;
}

/** The trailers of a call that replied with messages, and may have failed after them. */
export function trailersOf({ trailer, failure }: Call): OutgoingHttpHeaders {
  if (failure) return toTrailers(setTrailerStatus(new Headers(trailer), failure));
  const trailers = toFields(trailer);
  trailers["grpc-status"] = "0";
  return trailers;
}

/** Replies to a call of gRPC with an error alone. */
export function sendStatus(exchange: Exchange, error: ConnectError, call?: Call): void {
  const trailer = setTrailerStatus(new Headers(call?.trailer), error);
  sendTrailers(exchange, headersOf(exchange, call), trailer);
}

/**
 * Replies without a message. Headers of the service's own go in a frame of their own, since some
 * clients take a single one for trailers.
 */
export function sendTrailers(
  exchange: Exchange,
  headers: OutgoingHttpHeaders,
  trailer: Headers,
): void {
  const trailers = toTrailers(trailer);
  const isBare = Object.keys(headers).every((name) => /^(content-type$|grpc-)/.test(name));
  if (isBare) exchange.send(200, { ...headers, ...trailers });
  else exchange.send(200, headers, undefined, trailers);
}

/** Trailers whose message is encoded no more than the protocol, and HTTP at its ends, ask. */
export function toTrailers(trailer: Headers): OutgoingHttpHeaders {
  const trailers = toFields(trailer);
  const message = trailer.get("grpc-message");
  if (message !== null) {
    trailers["grpc-message"] = decodeURIComponent(message).replaceAll(
      /[^ -$&-~]+|^ | $/gu,
      encodeURIComponent,
    );
  }
  return trailers;
}
