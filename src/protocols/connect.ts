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

/** How messages are read from JSON, and written. */
export type JsonOptions = Partial<JsonReadOptions & JsonWriteOptions> & {
  /** Refuses what is not UTF-8. */
  textDecoder: { decode(bytes?: Uint8Array): string };
};

const json = "application/json";
const proto = "application/proto";

/**
 * Whether a request has the form that most unary calls of Connect have: its one message is
 * the body, and not compressed (https://connectrpc.com/docs/protocol#unary-request).
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

/** A timeout as Connect writes it; it has no maximum, since a call has a limit of its own. */
export function readConnectTimeout(text: unknown) {
  return parseTimeout(text === undefined ? null : String(text), Number.POSITIVE_INFINITY);
}

/**
 * Decodes a message from JSON.
 *
 * @throws {ConnectError} MALFORMED_REQUEST, which repeats no value
 */
export function decodeJson(desc: DescMessage, bytes: Uint8Array, options: JsonOptions): Message {
  try {
    return fromJsonString(desc, options.textDecoder.decode(bytes), options);
  } catch (error) {
    // It says where JSON is wrong; the decoder's message may repeat the body.
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
      const compression = chooseCompression(
        compressions,
        headers["accept-encoding"],
        Buffer.byteLength(message),
      );
      if (compression === null) {
        // Text can leave in one piece with the headers.
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
