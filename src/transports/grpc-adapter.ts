import { type EventEmitter, once } from "node:events";
import { type DescMessage, fromBinary, type MessageShape, toBinary } from "@bufbuild/protobuf";
import {
  Code,
  ConnectError,
  type Interceptor,
  type MethodImplSpec,
  type ServiceImplSpec,
} from "@connectrpc/connect";
import { transformInvokeImplementation } from "@connectrpc/connect/protocol";
import { setTrailerStatus } from "@connectrpc/connect/protocol-grpc";
import type {
  handleUnaryCall,
  ServerDuplexStream,
  ServerReadableStream,
  ServerUnaryCall,
  ServerWritableStream,
  ServiceDefinition,
  StatusObject,
  sendUnaryData,
  UntypedServiceImplementation,
} from "@grpc/grpc-js";
import { type Call, callKey } from "../calls/call.ts";
import { CallContext } from "../calls/context.ts";
import { invokeUnary, type UnarySpec } from "../calls/invoke.ts";
import { malformedRequest } from "../service/errors.ts";
import { toHeaders, toMetadata } from "./grpc-metadata.ts";

/** The key of the {@link Call} among the opaque data of the metadata. */
export const callOpaqueKey = "call";

/**
 * Lets grpc-js serve a service that is written for Connect, behind the same interceptors.
 *
 * Messages pass through grpc-js as bytes: it would answer those that it cannot decode
 * with INTERNAL, out of reach of any interceptor.
 */
export function toGrpcService(
  { service, methods }: ServiceImplSpec,
  interceptors: Interceptor[],
): [ServiceDefinition, UntypedServiceImplementation] {
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
    handlers[name] =
      spec.kind === "unary" ? unaryHandler(spec, interceptors) : streamHandler(spec, interceptors);
  }
  return [definition, handlers];
}

/** The status that tells a gRPC client of an error, with its details (google.rpc.Status). */
export function toGrpcStatus(error: unknown, trailer = new Headers()): StatusObject {
  const known =
    error instanceof ConnectError ? error : new ConnectError("internal error", Code.Internal);
  const metadata = toMetadata(setTrailerStatus(trailer, known));
  // These two are fields of a status of grpc-js, which sends them itself.
  metadata.remove("grpc-status");
  metadata.remove("grpc-message");
  return { code: known.code as number, details: known.rawMessage, metadata };
}

function unaryHandler(
  spec: UnarySpec,
  interceptors: Interceptor[],
): handleUnaryCall<Uint8Array, Uint8Array> {
  return async (call, callback) => {
    const context = contextOf(call);
    try {
      const input = decode(spec.method.input, call.request);
      const output = await invokeUnary(spec, context, input, interceptors);
      sendHeader(call, output.header);
      callback(null, toBinary(spec.method.output, output.message), toMetadata(output.trailer));
    } catch (error) {
      context.values.get(callKey)?.fail(error);
      sendHeader(call, context.responseHeader);
      callback(toGrpcStatus(error, context.responseTrailer));
    }
  };
}

type UnaryCall = ServerUnaryCall<Uint8Array, Uint8Array>;
type AnyCall = EventEmitter &
  Pick<UnaryCall, "metadata" | "getDeadline" | "getHost" | "getPath" | "sendMetadata">;
type StreamCall =
  | ServerReadableStream<Uint8Array, Uint8Array>
  | ServerWritableStream<Uint8Array, Uint8Array>
  | ServerDuplexStream<Uint8Array, Uint8Array>;

function streamHandler(spec: MethodImplSpec, interceptors: Interceptor[]) {
  // Only a client-streaming call has a single answer, and grpc-js gives a way to send it.
  return async (call: StreamCall, respond?: sendUnaryData<Uint8Array>): Promise<void> => {
    const context = contextOf(call);
    const outputs = call as ServerWritableStream<Uint8Array, Uint8Array>;
    try {
      const invoke = transformInvokeImplementation(spec, context, interceptors);
      for await (const output of invoke(readMessages(spec.method.input, call))) {
        sendHeader(call, context.responseHeader);
        const bytes = toBinary(spec.method.output, output);
        if (respond) respond(null, bytes, toMetadata(context.responseTrailer));
        else if (!outputs.write(bytes)) await once(call, "drain", { signal: context.signal });
      }
      sendHeader(call, context.responseHeader);
      if (!respond) outputs.end(toMetadata(context.responseTrailer));
    } catch (error) {
      context.values.get(callKey)?.fail(error);
      sendHeader(call, context.responseHeader);
      const status = toGrpcStatus(error, context.responseTrailer);
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

function contextOf(call: AnyCall): CallContext {
  const deadline = Number(call.getDeadline());
  return new CallContext(call.metadata.getOpaque(callOpaqueKey) as Call, {
    protocolName: "grpc",
    requestMethod: "POST",
    url: `http://${call.getHost()}${call.getPath()}`,
    requestHeader: () => toHeaders(call.metadata),
    timeoutMs: Number.isFinite(deadline) ? Math.max(0, deadline - Date.now()) : undefined,
  });
}

function decode<Desc extends DescMessage>(schema: Desc, bytes: Uint8Array): MessageShape<Desc> {
  try {
    return fromBinary(schema, bytes);
  } catch (error) {
    throw malformedRequest(error);
  }
}

function sendHeader(call: AnyCall, header: Headers): void {
  // Most answers have none, and grpc-js sends its own with the first message.
  const isEmpty = header.keys().next().done;
  if (!isEmpty) call.sendMetadata(toMetadata(header));
}

function asBuffer(bytes: Uint8Array): Buffer {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}
