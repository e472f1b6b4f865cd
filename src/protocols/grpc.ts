import type { IncomingHttpHeaders } from "node:http";
import type { ServerHttp2Stream } from "node:http2";
import type { DescMethod } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { compressedFlag } from "@connectrpc/connect/protocol";
import {
  contentTypeRegExp,
  parseTimeout,
  setTrailerStatus,
} from "@connectrpc/connect/protocol-grpc";
import type { Call } from "../calls/call.ts";
import { Failure, malformedRequest } from "../failures.ts";
import { toConnectError } from "./connect-error.ts";
import type { Messages } from "./messages.ts";
import type { Codec } from "./unary.ts";

/** The length of a message's prefix: a compression flag and the message's length. */
export const prefixBytes = 5;

/** Whether a request is a gRPC call, which needs HTTP/2. */
export function isGrpc(headers: IncomingHttpHeaders): boolean {
  return headers[":method"] === "POST" && contentTypeRegExp.test(headers["content-type"] ?? "");
}

/** Whether the messages of a call by gRPC or gRPC-Web are JSON. */
export function isJson({ "content-type": type = "" }: IncomingHttpHeaders): boolean {
  return /\+json/i.test(type);
}

/** What gRPC and gRPC-Web have in common: how they read a call, whose body is one message in a frame. */
export function createFraming(messages: Messages) {
  return {
    overhead: prefixBytes,

    // No maximum, since calls have a limit of their own.
    readTimeout: ({ "grpc-timeout": text }: IncomingHttpHeaders) =>
      parseTimeout(text === undefined ? null : String(text), Number.POSITIVE_INFINITY),

    decode({ input }: DescMethod, body: Uint8Array, _: unknown, call: Call, maxBytes: number) {
      const { headers } = call.head;
      const compression = messages.findCompression(headers["grpc-encoding"]);
      if (body.length === 0) throw new Failure("there is no message", { code: Code.Unimplemented });
      if (body.length < prefixBytes) throw malformedRequest();
      const isPacked = body[0] === compressedFlag;
      const end = prefixBytes + new DataView(body.buffer, body.byteOffset).getUint32(1);
      if (isPacked && compression === null) {
        // The protocol wants the code INTERNAL for this mistake of a client, which is not a fault of the service.
        call.recordFailure(malformedRequest());
        throw new Failure("the message is compressed, but names no encoding", {
          code: Code.Internal,
        });
      }
      if ((body[0] !== 0 && !isPacked) || body.length < end) throw malformedRequest();
      if (body.length > end) {
        throw new Failure("there is more than one message", { code: Code.Unimplemented });
      }
      const packing = isPacked ? compression : null;
      return messages.read(input, body.subarray(prefixBytes), isJson(headers), packing, maxBytes);
    },
  };
}

export function toFrame(message: Uint8Array | string, isPacked: boolean): Buffer {
  const length = Buffer.byteLength(message);
  const frame = Buffer.allocUnsafe(prefixBytes + length);
  frame.writeUInt8(isPacked ? compressedFlag : 0, 0);
  frame.writeUInt32BE(length, 1);
  if (typeof message === "string") frame.write(message, prefixBytes);
  else frame.set(message, prefixBytes);
  return frame;
}

/**
 * Creates the codec of unary gRPC calls, which replies on an HTTP/2 stream
 * (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md).
 */
export function createGrpcCodec(messages: Messages): Codec<ServerHttp2Stream, ServerHttp2Stream> {
  return {
    transport: "grpc",
    ...createFraming(messages),

    reply(stream, output, { head: { method, headers } }) {
      // Nearly every client accepts gzip, unasked; those that send it want it.
      const wantsIt = isJson(headers) || (headers["grpc-encoding"] ?? "identity") !== "identity";
      const accepted = wantsIt ? headers["grpc-accept-encoding"] : undefined;
      return messages.write(method.output, output, isJson(headers), accepted, (bytes, encoding) => {
        // In the form that Node.js sends: it would have to convert an object.
        const head = [":status", "200", "content-type", String(headers["content-type"])];
        if (encoding) head.push("grpc-encoding", encoding);
        stream.respond(head, { waitForTrailers: true });
        stream.on("wantTrailers", sendOk);
        stream.end(toFrame(bytes, encoding !== undefined));
      });
    },

    fail: (stream, error, { head }) => sendStatus(stream, head.headers, error),
  };
}

function sendOk(this: ServerHttp2Stream): void {
  this.sendTrailers({ "grpc-status": "0" });
}

/**
 * Replies to a gRPC call with an error in trailers only: a client that has seen headers does not
 * retry by itself. Clients read the retry delay from a header, not from the details
 * (https://github.com/grpc/proposal/blob/master/A6-client-retries.md).
 */
export function sendStatus(
  stream: ServerHttp2Stream,
  headers: IncomingHttpHeaders,
  failure: Failure,
): void {
  const head = { "content-type": headers["content-type"] };
  const { retryAfterMs } = failure;
  const pushback = retryAfterMs && { "grpc-retry-pushback-ms": String(retryAfterMs) };
  const status = Object.fromEntries(statusOf(failure));
  stream.respond({ ...head, ...status, ...pushback }, { endStream: true });
}

/** The status of a failed call in gRPC's trailers. */
export function statusOf(failure: Failure): Headers {
  const error = toConnectError(failure);
  const status = setTrailerStatus(new Headers(), error);
  // Encodes only what gRPC requires, and spaces that HTTP trims: grpc-js does not decode the rest.
  const message = error.rawMessage.replaceAll(/[^ -$&-~]+|^ | $/gu, encodeURIComponent);
  status.set("grpc-message", message);
  if (failure.reason) status.set("reason", failure.reason);
  return status;
}
