import { encodeEnvelope } from "@connectrpc/connect/protocol";
import {
  contentTypeJson,
  contentTypeProto,
  parseContentType,
  trailerFlag,
  trailerSerialize,
} from "@connectrpc/connect/protocol-grpc-web";
import type { Call } from "../calls/call.ts";
import type { HttpResponse } from "../http/reply.ts";
import type { HttpRequest } from "../http/request.ts";
import { createFraming, isJson, statusOf, toFrame } from "./grpc.ts";
import type { Messages } from "./messages.ts";
import type { Codec } from "./unary.ts";

/** Whether a request is a call by binary gRPC-Web. */
export function isGrpcWeb({ method, headers }: HttpRequest): boolean {
  return method === "POST" && parseContentType(headers["content-type"] ?? null)?.text === false;
}

/**
 * Creates the codec of unary calls by binary gRPC-Web, whose trailers are the last frame of the body
 * (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-WEB.md).
 */
export function createGrpcWebCodec(messages: Messages): Codec<HttpRequest, HttpResponse> {
  const toTrailers = (status: Headers) => encodeEnvelope(trailerFlag, trailerSerialize(status));
  const ok = toTrailers(new Headers({ "grpc-status": "0" }));

  function sendBody(response: HttpResponse, { head }: Call, body: Uint8Array, encoding?: string) {
    response.writeHead(200, {
      "content-type": isJson(head.headers) ? contentTypeJson : contentTypeProto,
      "cache-control": "no-store",
      ...(encoding && { "grpc-encoding": encoding }),
    });
    // Before the end of the stream, at which Go's client breaks off a large request, unread reply and all.
    response.write(body);
    response.end();
  }

  return {
    transport: "grpc-web",
    ...createFraming(messages),

    reply(response, output, call) {
      const { method, headers } = call.head;
      const accepted = headers["grpc-accept-encoding"];
      return messages.write(method.output, output, isJson(headers), accepted, (bytes, encoding) => {
        const frame = toFrame(bytes, encoding !== undefined);
        sendBody(response, call, Buffer.concat([frame, ok]), encoding);
      });
    },

    fail: (response, failure, call) => sendBody(response, call, toTrailers(statusOf(failure))),
  };
}
