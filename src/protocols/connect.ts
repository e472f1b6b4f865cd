import { base64Decode } from "@bufbuild/protobuf/wire";
import {
  codeToHttpStatus,
  contentTypeStreamRegExp,
  contentTypeUnaryJson,
  contentTypeUnaryProto,
  contentTypeUnaryRegExp,
  errorToJsonBytes,
  parseTimeout,
} from "@connectrpc/connect/protocol-connect";
import { malformedRequest } from "../failures.ts";
import { type HttpResponse, send } from "../http/reply.ts";
import { type HttpRequest, queryOf } from "../http/request.ts";
import { toConnectError } from "./connect-error.ts";
import type { JsonOptions, Messages } from "./messages.ts";
import { jsonHeaders } from "./problem.ts";
import type { Codec } from "./unary.ts";

/**
 * Puts what the query of a GET says of its format where a POST has it, in a header
 * (https://connectrpc.com/docs/protocol#unary-get-request).
 */
export function setTypeOfGet(request: HttpRequest): void {
  request.headers["content-type"] = `application/${queryOf(request).get("encoding")}`;
}

export function isConnect({ headers }: HttpRequest, isUnary: boolean): boolean {
  const types = isUnary ? contentTypeUnaryRegExp : contentTypeStreamRegExp;
  return types.test(headers["content-type"] ?? "");
}

/** Creates the codec of unary Connect calls (https://connectrpc.com/docs/protocol#unary-request). */
export function createConnectCodec(
  messages: Messages,
  jsonOptions: JsonOptions,
): Codec<HttpRequest, HttpResponse> {
  return {
    transport: "connect",

    // No maximum, since calls have a limit of their own.
    readTimeout: ({ "connect-timeout-ms": text }) =>
      parseTimeout(text === undefined ? null : String(text), Number.POSITIVE_INFINITY),

    decode({ input }, body, request, _, maxBytes) {
      const query = request.method === "GET" ? queryOf(request) : undefined;
      const encoding = query ? query.get("compression") : request.headers["content-encoding"];
      const compression = messages.findCompression(encoding ?? undefined);
      const message = query ? readMessage(query) : body;
      return messages.read(input, message, isJson(request), compression, maxBytes);
    },

    reply(response, output, { head: { method, headers } }, request) {
      const asJson = isJson(request);
      const accepted = headers["accept-encoding"];
      return messages.write(method.output, output, asJson, accepted, (bytes, encoding) => {
        const replyHeaders = {
          "content-type": asJson ? contentTypeUnaryJson : contentTypeUnaryProto,
          "cache-control": "no-store",
          ...(encoding && { "content-encoding": encoding }),
        };
        // Text as it is, so that it can leave in one write with the headers.
        send(response, 200, replyHeaders, typeof bytes === "string" ? bytes : Buffer.from(bytes));
      });
    },

    fail(response, failure) {
      const error = toConnectError(failure);
      const headers = { ...Object.fromEntries(error.metadata), ...jsonHeaders };
      send(response, codeToHttpStatus(error.code), headers, errorToJsonBytes(error, jsonOptions));
    },
  };
}

function isJson({ headers }: HttpRequest): boolean {
  return !/proto$/i.test(headers["content-type"] ?? "");
}

/** @throws {Failure} MALFORMED_REQUEST: the message is not in base64, as the query says */
function readMessage(query: URLSearchParams): Uint8Array {
  const message = query.get("message") ?? "";
  if (query.get("base64") !== "1") return Buffer.from(message);
  try {
    return base64Decode(message);
  } catch (error) {
    throw malformedRequest(error);
  }
}
