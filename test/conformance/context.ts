import { type OutgoingHttpHeaders, ServerResponse } from "node:http";
import { Http2ServerResponse, type ServerHttp2Stream } from "node:http2";
import type { HandlerContext } from "@connectrpc/connect";
import { encodeEnvelope } from "@connectrpc/connect/protocol";
import { trailerFlag, trailerSerialize } from "@connectrpc/connect/protocol-grpc-web";
import { Call } from "../../src/calls/call.ts";
import { callKey } from "../../src/protocols/streams.ts";

/**
 * The whole context of a handler around a unary call, which has just what this project's service
 * needs. The suite's service also sets headers and trailers: they are added to what the call sends.
 *
 * @throws {Error} the unary path has not served the call
 */
export function toWholeContext(call: Call | HandlerContext): HandlerContext {
  if (!(call instanceof Call)) throw new Error("the unary path has not served this call");
  const { method, transport, headers, timeoutMs, response } = call.head;
  const responseHeader = new Headers();
  const responseTrailer = new Headers();
  const isHttp = response instanceof ServerResponse || response instanceof Http2ServerResponse;
  if (isHttp) addToResponse(response as ServerResponse, transport, responseHeader, responseTrailer);
  else addToStream(response as ServerHttp2Stream, responseHeader, responseTrailer);
  const request = isHttp ? response.req : undefined;
  const fields = Object.entries(headers).filter(([name]) => !name.startsWith(":"));
  call.values.set(callKey, call);
  return {
    method,
    service: method.parent,
    protocolName: transport,
    requestMethod: request?.method ?? "POST",
    requestHeader: new Headers(fields.map(([name, value]) => [name, String(value)])),
    responseHeader,
    responseTrailer,
    values: call.values,
    signal: call.signal,
    timeoutMs: () => timeoutMs,
    url: `http://localhost${request?.url}`,
  };
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
    stream.removeAllListeners("wantTrailers").on("wantTrailers", () => stream.sendTrailers(rest));
    const head = { ":status": status, "content-type": type, ...added() };
    respond.call(stream, head, { waitForTrailers: true });
    stream.end();
  };
  stream.sendTrailers = (trailers) =>
    sendTrailers.call(stream, { ...trailers, ...toFields(trailer) });
}

function addToResponse(
  response: ServerResponse,
  transport: string,
  header: Headers,
  trailer: Headers,
): void {
  const isWeb = transport === "grpc-web";
  const { writeHead, write } = response;
  response.writeHead = (status: number, headers: unknown) =>
    writeHead.call(response, status, {
      ...(headers as OutgoingHttpHeaders),
      ...toFields(header),
      ...(!isWeb && toFields(trailer, "trailer-")),
    });
  if (!isWeb) return;
  // Its trailers are the last frame of the body.
  response.write = (bytes: Uint8Array) => {
    const body = Buffer.from(bytes);
    const at = body.findIndex(
      (flags, i) => flags === trailerFlag && i + 5 + body.readUInt32BE(i + 1) === body.length,
    );
    const fields = trailerSerialize(new Headers(toFields(trailer) as Record<string, string>));
    const last = encodeEnvelope(trailerFlag, Buffer.concat([body.subarray(at + 5), fields]));
    return write.call(response, Buffer.concat([body.subarray(0, at), last]), "utf8");
  };
}

function toFields(headers: Headers, prefix = ""): OutgoingHttpHeaders {
  return Object.fromEntries(
    Array.from(headers, ([name, value]) => [
      prefix + name,
      name.endsWith("-bin") ? value.replaceAll(/=+(?=,|$)/g, "") : value,
    ]),
  );
}
