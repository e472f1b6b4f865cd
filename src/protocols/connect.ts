import {
  fromBinary,
  fromJsonString,
  type JsonReadOptions,
  type JsonWriteOptions,
  toBinary,
  toJsonString,
} from "@bufbuild/protobuf";
import {
  type Compression,
  compressionNegotiate,
  mergeNonProtocolHeaders,
} from "@connectrpc/connect/protocol";
import {
  codeToHttpStatus,
  errorToJsonBytes,
  parseTimeout,
} from "@connectrpc/connect/protocol-connect";
import type { Exchange } from "../http/exchange.ts";
import { malformedRequest } from "../service/errors.ts";
import { currentUsage } from "./compression.ts";
import { toFields } from "./fields.ts";
import { jsonHeaders } from "./problem.ts";
import { binaryOptions, type Codec } from "./unary.ts";

/** How messages are read from JSON, and written. */
export type JsonOptions = Partial<JsonReadOptions & JsonWriteOptions> & {
  /** Refuses what is not UTF-8. */
  textDecoder: InstanceType<typeof TextDecoder>;
};

const json = "application/json";
const proto = "application/proto";

/** The least number of bytes that a reply is compressed for, as in connect-node. */
const compressMinBytes = 1_024;

/**
 * Whether a request has the form that most unary calls of Connect have: its one message is
 * the body, and not compressed (https://connectrpc.com/docs/protocol#unary-request).
 */
export function isCommonConnect({ method, url, headers }: Exchange): boolean {
  return (
    method === "POST" &&
    !url.includes("?") &&
    (headers["content-type"] === json || headers["content-type"] === proto) &&
    (headers["content-encoding"] ?? "identity") === "identity" &&
    (headers["connect-protocol-version"] ?? "1") === "1" &&
    readConnectTimeout(headers["connect-timeout-ms"]).error === undefined
  );
}

/** A timeout as Connect writes it; it has no maximum, since a call has a limit of its own. */
export function readConnectTimeout(text: string | undefined) {
  return parseTimeout(text ?? null, Number.POSITIVE_INFINITY);
}

/** Creates the codec of the common form of unary Connect calls. */
export function createConnectCodec(jsonOptions: JsonOptions, compressions: Compression[]): Codec {
  return {
    transport: "connect",
    overhead: 0,

    timeoutMs: ({ headers }) => readConnectTimeout(headers["connect-timeout-ms"]).timeoutMs,

    decode({ input }, body, { head: { exchange } }) {
      try {
        return exchange.headers["content-type"] === proto
          ? fromBinary(input, body, binaryOptions)
          : fromJsonString(input, jsonOptions.textDecoder.decode(body), jsonOptions);
      } catch (error) {
        throw malformedRequest(error);
      }
    },

    async reply(exchange, output, call) {
      const { method, header, trailer } = call;
      const type = exchange.headers["content-type"];
      const message =
        type === proto
          ? toBinary(method.output, output)
          : toJsonString(method.output, output, jsonOptions);
      const headers = Object.assign(toFields(header), toFields(trailer, "trailer-"));
      headers["content-type"] = type;
      headers["cache-control"] = "no-store";
      const isLarge = Buffer.byteLength(message) >= compressMinBytes;
      const accepted = (isLarge && exchange.headers["accept-encoding"]) || null;
      const { response: compression } = compressionNegotiate(compressions, null, accepted, "");
      if (compression === null) {
        // Text can leave in one piece with the headers.
        exchange.send(200, headers, message);
        return;
      }
      headers["content-encoding"] = compression.name;
      const compressing = currentUsage.run(
        exchange.usage,
        compression.compress,
        Buffer.from(message),
      );
      exchange.send(200, headers, await call.untilEnd(compressing));
    },

    fail(exchange, error, call) {
      const header = new Headers(call?.header);
      mergeNonProtocolHeaders(header, error.metadata);
      const headers = { ...toFields(header), ...toFields(call?.trailer, "trailer-") };
      const body = errorToJsonBytes(error, jsonOptions);
      exchange.send(codeToHttpStatus(error.code), { ...headers, ...jsonHeaders }, body);
    },
  };
}
