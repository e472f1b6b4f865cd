import {
  type DescMessage,
  fromJsonString,
  type JsonReadOptions,
  type JsonWriteOptions,
  type Message,
  toJsonString,
} from "@bufbuild/protobuf";
import type { Compression } from "@connectrpc/connect/protocol";
import {
  codeToHttpStatus,
  errorToJsonBytes,
  parseTimeout,
} from "@connectrpc/connect/protocol-connect";
import { malformedRequest } from "../errors.ts";
import { type HttpResponse, send } from "../http/reply.ts";
import type { HttpRequest } from "../http/request.ts";
import { chooseCompression } from "./compression.ts";
import { createEncoder } from "./investor-binary.ts";
import { jsonHeaders } from "./problem.ts";
import { readObject } from "./rest-request.ts";
import { type Codec, decodeBinary } from "./unary.ts";

/** How messages are read from and written to JSON. */
export type JsonOptions = Partial<JsonReadOptions & JsonWriteOptions> & {
  /** Throws on bytes that are not UTF-8. */
  textDecoder: { decode(bytes?: Uint8Array): string };
};

const json = "application/json";
const proto = "application/proto";

/**
 * Whether a request has the common form of a unary Connect call: one uncompressed message as the
 * body (https://connectrpc.com/docs/protocol#unary-request).
 */
export function isCommonConnect({ method, url, headers }: HttpRequest): boolean {
  return (
    method === "POST" &&
    !url?.includes("?") &&
    (headers["content-type"] === json || headers["content-type"] === proto) &&
    (headers["content-encoding"] ?? "identity") === "identity" &&
    readConnectTimeout(headers["connect-timeout-ms"]).error === undefined
  );
}

/** Parses Connect's timeout header. No maximum, since calls have a limit of their own. */
export function readConnectTimeout(text: unknown) {
  return parseTimeout(text === undefined ? null : String(text), Number.POSITIVE_INFINITY);
}

/**
 * Decodes a message from JSON.
 *
 * @throws {ConnectError} MALFORMED_REQUEST; it repeats no value
 */
export function decodeJson(desc: DescMessage, bytes: Uint8Array, options: JsonOptions): Message {
  try {
    return fromJsonString(desc, options.textDecoder.decode(bytes), options);
  } catch (error) {
    // Throws an error with the position of wrong JSON; the decoder's message may repeat the body.
    readObject(bytes);
    throw malformedRequest(error);
  }
}

/** Creates the codec of the common form of unary Connect calls. */
export function createConnectCodec(
  jsonOptions: JsonOptions,
  compressions: Compression[],
): Codec<HttpRequest, HttpResponse> {
  const encode = createEncoder();
  return {
    transport: "connect",

    timeoutMs: (headers) => readConnectTimeout(headers["connect-timeout-ms"]).timeoutMs,

    decode({ input }, body, { headers }) {
      return headers["content-type"] === json
        ? decodeJson(input, body, jsonOptions)
        : decodeBinary(input, body);
    },

    reply(response, output, call) {
      const { method, headers } = call.head;
      const type = headers["content-type"];
      const message =
        type === proto
          ? Buffer.from(encode(method.output, output))
          : toJsonString(method.output, output, jsonOptions);
      const replyHeaders = { "content-type": type, "cache-control": "no-store" };
      const accepted = headers["accept-encoding"];
      const compression = chooseCompression(compressions, accepted, Buffer.byteLength(message));
      if (compression === null) {
        // As text, so that it can leave in one write with the headers.
        send(response, 200, replyHeaders, message);
        return;
      }
      return call
        .unlessAborted(compression.compress(Buffer.from(message)))
        .then((bytes) =>
          send(response, 200, { ...replyHeaders, "content-encoding": compression.name }, bytes),
        );
    },

    fail(response, error) {
      const headers = { ...Object.fromEntries(error.metadata), ...jsonHeaders };
      send(response, codeToHttpStatus(error.code), headers, errorToJsonBytes(error, jsonOptions));
    },
  };
}
