import { type OutgoingHttpHeaders, ServerResponse } from "node:http";
import { Http2ServerResponse, type ServerHttp2Stream } from "node:http2";
import type { HandlerContext } from "@connectrpc/connect";
import { Call } from "../../src/calls/call.ts";
import { callKey } from "../../src/protocols/connect-router.ts";

/**
 * The whole context of a handler around a call of the common form, which has just what this
 * project's service needs. The suite's service also sets headers and trailers: they are added to what
 * the call sends.
 *
 * @throws {Error} the unary path has not served a call of the common form
 */
export function toWholeContext(call: Call | HandlerContext): HandlerContext {
  if (!(call instanceof Call)) {
    if (isCommon(call)) throw new Error("the unary path has not served this call");
    return call;
  }
  const { method, transport, headers, timeoutMs, response } = call.head;
  const responseHeader = new Headers();
  const responseTrailer = new Headers();
  if (response instanceof ServerResponse || response instanceof Http2ServerResponse) {
    addToResponse(response as ServerResponse, responseHeader, responseTrailer);
  } else addToStream(response as ServerHttp2Stream, responseHeader, responseTrailer);
  const fields = Object.entries(headers).filter(([name]) => !name.startsWith(":"));
  call.values.set(callKey, call);
  return {
    method,
    service: method.parent,
    protocolName: transport,
    requestMethod: "POST",
    requestHeader: new Headers(fields.map(([name, value]) => [name, String(value)])),
    responseHeader,
    responseTrailer,
    values: call.values,
    signal: call.signal,
    timeoutMs: () => timeoutMs,
    url: "",
  };
}

function isCommon({ protocolName, requestMethod, values }: HandlerContext): boolean {
  const isGrpc = protocolName === "grpc";
  if (protocolName === "grpc-web") return false;
  // Connect gets it without those of what was unpacked before.
  const { headers } = values.get(callKey).head;
  const encoding = headers[isGrpc ? "grpc-encoding" : "content-encoding"] ?? "identity";
  const isText = headers["content-type"]?.startsWith("application/grpc+json");
  return requestMethod === "POST" && encoding === "identity" && !isText;
}

function addToStream(stream: ServerHttp2Stream, header: Headers, trailer: Headers): void {
  const { respond, sendTrailers } = stream;
  const added = () => toFields(header);
  stream.respond = (headers, options) => {
    if (Array.isArray(headers)) {
      const more = Object.entries(added()).flatMap(([name, value]) => [name, String(value)]);
      respond.call(stream, [...headers, ...more], options);
      return;
    }
    // An error alone: what the service set goes where it belongs.
    const { ":status": status, "content-type": type, ...rest } = headers as OutgoingHttpHeaders;
    stream.on("wantTrailers", () => stream.sendTrailers(rest));
    const head = { ":status": status, "content-type": type, ...added() };
    respond.call(stream, head, { waitForTrailers: true });
    stream.end();
  };
  stream.sendTrailers = (trailers) =>
    sendTrailers.call(stream, { ...trailers, ...toFields(trailer) });
}

function addToResponse(response: ServerResponse, header: Headers, trailer: Headers): void {
  const { writeHead } = response;
  response.writeHead = (status: number, headers: unknown) =>
    writeHead.call(response, status, {
      ...(headers as OutgoingHttpHeaders),
      ...toFields(header),
      ...toFields(trailer, "trailer-"),
    });
}

function toFields(headers: Headers, prefix = ""): OutgoingHttpHeaders {
  return Object.fromEntries(
    Array.from(headers, ([name, value]) => [
      prefix + name,
      name.endsWith("-bin") ? value.replaceAll(/=+(?=,|$)/g, "") : value,
    ]),
  );
}
