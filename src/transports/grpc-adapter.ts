import { type EventEmitter, once } from "node:events";
import { type DescMessage, fromBinary, type MessageShape, toBinary } from "@bufbuild/protobuf";
import type {
  ConnectError,
  HandlerContext,
  MethodImplSpec,
  ServiceImplSpec,
} from "@connectrpc/connect";
import { transformInvokeImplementation } from "@connectrpc/connect/protocol";
import { setTrailerStatus } from "@connectrpc/connect/protocol-grpc";
import type {
  handleUnaryCall,
  Metadata,
  ServerDuplexStream,
  ServerReadableStream,
  ServerUnaryCall,
  ServerWritableStream,
  ServiceDefinition,
  StatusObject,
  sendUnaryData,
  UntypedServiceImplementation,
} from "@grpc/grpc-js";
import { type Call, runCall, type UnarySpec } from "../calls/call.ts";
import { malformedRequest } from "../service/errors.ts";
import { toMetadata } from "./grpc-metadata.ts";

/** The key of the {@link Call} among the opaque data of the metadata. */
export const callOpaqueKey = "call";

/**
 * Lets grpc-js serve a service that is written for Connect.
 *
 * Messages pass through grpc-js as bytes: it would answer those that it cannot decode
 * with INTERNAL, out of reach of any interceptor.
 */
export function toGrpcService({
  service,
  methods,
}: ServiceImplSpec): [ServiceDefinition, UntypedServiceImplementation] {
  const definition: Record<string, ServiceDefinition[string]> = {};
  const handlers: UntypedServiceImplementation = {};
  for (const [name, spec] of Object.entries(methods)) {
    definition[name] = {
      path: `/${service.typeName}/${spec.method.name}`,
      requestStream: spec.kind === "client_streaming" || spec.kind === "bidi_streaming",
      responseStream: spec.kind === "server_streaming" || spec.kind === "bidi_streaming",
      requestSerialize: asBuffer,
      requestDeserialize: asBuffer,
      responseSerialize: asBuffer,
      responseDeserialize: asBuffer,
    };
    handlers[name] = spec.kind === "unary" ? unaryHandler(spec) : streamHandler(spec);
  }
  return [definition, handlers];
}

/** The status that tells a gRPC client of an error, with its details (google.rpc.Status). */
export function toGrpcStatus(error: ConnectError, trailer = new Headers()): StatusObject {
  const metadata = toMetadata(setTrailerStatus(trailer, error));
  // These two are fields of a status of grpc-js, which sends them itself.
  metadata.remove("grpc-status");
  metadata.remove("grpc-message");
  return { code: error.code as number, details: error.rawMessage, metadata };
}

function unaryHandler(spec: UnarySpec): handleUnaryCall<Uint8Array, Uint8Array> {
  return async (grpcCall, callback) => {
    const call = callOf(grpcCall);
    try {
      const output = await call.invoke(spec, decode(spec.method.input, grpcCall.request));
      sendHeader(grpcCall, call);
      callback(null, toBinary(spec.method.output, output), toTrailer(call));
    } catch (error) {
      sendHeader(grpcCall, call);
      callback(toGrpcStatus(call.fail(error), call.trailer));
    }
  };
}

type UnaryCall = ServerUnaryCall<Uint8Array, Uint8Array>;
type AnyCall = EventEmitter & Pick<UnaryCall, "metadata" | "sendMetadata">;
type StreamCall =
  | ServerReadableStream<Uint8Array, Uint8Array>
  | ServerWritableStream<Uint8Array, Uint8Array>
  | ServerDuplexStream<Uint8Array, Uint8Array>;

function streamHandler(spec: MethodImplSpec) {
  // Only a client-streaming call has a single reply, and grpc-js gives a way to send it.
  return async (grpcCall: StreamCall, respond?: sendUnaryData<Uint8Array>): Promise<void> => {
    const call = callOf(grpcCall);
    const outputs = grpcCall as ServerWritableStream<Uint8Array, Uint8Array>;
    try {
      const invoke = transformInvokeImplementation(spec, toPlain(call), [runCall]);
      for await (const output of invoke(readMessages(spec.method.input, grpcCall))) {
        sendHeader(grpcCall, call);
        const bytes = toBinary(spec.method.output, output);
        if (respond) respond(null, bytes, toTrailer(call));
        else if (!outputs.write(bytes)) await once(grpcCall, "drain", { signal: call.signal });
      }
      sendHeader(grpcCall, call);
      if (!respond) outputs.end(toTrailer(call));
    } catch (error) {
      sendHeader(grpcCall, call);
      const status = toGrpcStatus(call.fail(error), call.trailer);
      if (respond) respond(status);
      else outputs.emit("error", status);
    }
  };
}

async function* readMessages<Desc extends DescMessage>(
  schema: Desc,
  call: StreamCall,
): AsyncIterable<MessageShape<Desc>> {
  if ("request" in call) {
    yield decode(schema, call.request);
  } else {
    for await (const bytes of call) yield decode(schema, bytes);
  }
}

/** The context of a call as Connect wants it for streams, whose fields it copies. */
function toPlain(call: Call): HandlerContext {
  const { service, method, protocolName, requestMethod, url, signal, timeoutMs, values } = call;
  const { requestHeader, responseHeader, responseTrailer } = call;
  const headers = { requestHeader, responseHeader, responseTrailer };
  return {
    service,
    method,
    protocolName,
    requestMethod,
    url,
    signal,
    timeoutMs,
    values,
    ...headers,
  };
}

function callOf({ metadata }: AnyCall): Call {
  return metadata.getOpaque(callOpaqueKey) as Call;
}

function decode<Desc extends DescMessage>(schema: Desc, bytes: Uint8Array): MessageShape<Desc> {
  try {
    return fromBinary(schema, bytes);
  } catch (error) {
    throw malformedRequest(error);
  }
}

function sendHeader(grpcCall: AnyCall, { header }: Call): void {
  // Most replies have none, and grpc-js sends its own with the first message.
  if (header !== undefined) grpcCall.sendMetadata(toMetadata(header));
}

function toTrailer({ trailer }: Call): Metadata | undefined {
  return trailer && toMetadata(trailer);
}

function asBuffer(bytes: Uint8Array): Buffer {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}
