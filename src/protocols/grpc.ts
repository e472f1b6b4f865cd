import type { IncomingHttpHeaders } from "node:http";
import type { ServerHttp2Stream } from "node:http2";
import type { DescMethod } from "@bufbuild/protobuf";
import { durationMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import {
  type Compression,
  createAsyncIterable,
  encodeEnvelope,
  pipe,
  transformDecompressEnvelope,
  transformSplitEnvelope,
} from "@connectrpc/connect/protocol";
import { parseTimeout, setTrailerStatus } from "@connectrpc/connect/protocol-grpc";
import { RetryInfoSchema } from "../../gen/google/rpc/error_details_pb.js";
import { malformedRequest, reasonOf } from "../errors.ts";
import { decodeJson, type JsonOptions } from "./connect.ts";
import { createEncoder } from "./investor-binary.ts";
import { type Codec, decodeBinary } from "./unary.ts";

/** The length of a message's prefix: a compression flag and the message's length. */
export const prefixBytes = 5;

/** Parses gRPC's timeout header. No maximum, since calls have a limit of their own. */
export function readGrpcTimeout(text: unknown) {
  return parseTimeout(text === undefined ? null : String(text), Number.POSITIVE_INFINITY);
}

/** Whether a request is gRPC, in any form. */
export function isGrpc(headers: IncomingHttpHeaders): boolean {
  return /^application\/grpc(?!-web)/i.test(headers["content-type"] ?? "");
}

/** Whether a request has the common form of a gRPC call: uncompressed protobuf. */
export function isCommonGrpc(headers: IncomingHttpHeaders): boolean {
  const { "content-type": type, "grpc-timeout": timeout } = headers;
  return (
    (type === "application/grpc" || type === "application/grpc+proto") &&
    headers[":method"] === "POST" &&
    (headers["grpc-encoding"] ?? "identity") === "identity" &&
    headers.expect === undefined &&
    readGrpcTimeout(timeout).error === undefined
  );
}

/**
 * Creates the codec for the common form of a unary gRPC call, on an HTTP/2 stream
 * (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md).
 */
export function createGrpcCodec(): Codec<ServerHttp2Stream, ServerHttp2Stream> {
  const encode = createEncoder();
  return {
    transport: "grpc",
    overhead: prefixBytes,

    timeoutMs: (headers) => readGrpcTimeout(headers["grpc-timeout"]).timeoutMs,

    decode({ input }, body, _, call) {
      if (body.length === 0) throw new ConnectError("there is no message", Code.Unimplemented);
      if (body.length < prefixBytes) throw malformedRequest();
      const flags = body[0];
      const end = prefixBytes + new DataView(body.buffer, body.byteOffset).getUint32(1);
      if (flags === 1) {
        // The protocol wants the code INTERNAL for this mistake of a client, which is not a fault of the service.
        call.recordFailure(malformedRequest());
        throw new ConnectError("the message is compressed, but names no encoding", Code.Internal);
      }
      if (flags !== 0 || body.length < end) throw malformedRequest();
      if (body.length > end) {
        throw new ConnectError("there is more than one message", Code.Unimplemented);
      }
      return decodeBinary(input, body.subarray(prefixBytes));
    },

    reply(stream, output, { head }) {
      const message = encode(head.method.output, output);
      const bytes = Buffer.allocUnsafe(prefixBytes + message.length);
      bytes.writeUInt8(0, 0);
      bytes.writeUInt32BE(message.length, 1);
      bytes.set(message, prefixBytes);
      const type = String(head.headers["content-type"]);
      // In the form that Node.js sends: it would have to convert an object.
      stream.respond([":status", "200", "content-type", type], { waitForTrailers: true });
      stream.on("wantTrailers", sendOk);
      stream.end(bytes);
    },

    fail: (stream, error, { head }) => sendStatus(stream, head.headers, error),
  };
}

/**
 * Unpacks the body of a gRPC or gRPC-Web call in any form, and checks that it consists of messages
 * of its method. Connect rejects other bytes without a reason, and some as a fault of the service.
 *
 * @throws {ConnectError} MALFORMED_REQUEST or MESSAGE_TOO_LARGE
 */
export async function unpackMessages(
  { input }: DescMethod,
  headers: IncomingHttpHeaders,
  body: Uint8Array,
  compression: Compression | undefined,
  maxBytes: number,
  jsonOptions: JsonOptions,
): Promise<Uint8Array> {
  const isJson = headers["content-type"]?.endsWith("json");
  const messages = pipe(
    createAsyncIterable([body]),
    transformSplitEnvelope(maxBytes),
    transformDecompressEnvelope(compression ?? null, maxBytes),
  );
  const unpacked: Uint8Array[] = [];
  try {
    for await (const { flags, data } of messages) {
      if (isJson) decodeJson(input, data, jsonOptions);
      else decodeBinary(input, data);
      // Two are enough to be rejected; more could be of any size.
      if (unpacked.length < 2) unpacked.push(encodeEnvelope(flags, data));
    }
    return Buffer.concat(unpacked);
  } catch (error) {
    // Connect rejects a compressed message without a named encoding, as the protocol requires.
    if (ConnectError.from(error).code === Code.Internal) return body;
    throw reasonOf(error) ? error : malformedRequest(error);
  }
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
  error: ConnectError,
): void {
  const status = Object.fromEntries(setTrailerStatus(new Headers(), error));
  // Encodes only what gRPC requires, and spaces that HTTP trims: grpc-js does not decode the rest.
  const message = error.rawMessage.replaceAll(/[^ -$&-~]+|^ | $/gu, encodeURIComponent);
  const head = { ":status": 200, "content-type": headers["content-type"] };
  const [retry] = error.findDetails(RetryInfoSchema);
  const pushback = retry?.retryDelay && {
    "grpc-retry-pushback-ms": String(durationMs(retry.retryDelay)),
  };
  const reason = reasonOf(error);
  const own = { ...status, ...pushback, ...(reason && { reason }), "grpc-message": message };
  stream.respond({ ...head, ...own }, { endStream: true });
}
