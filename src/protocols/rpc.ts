import { createRegistry } from "@bufbuild/protobuf";
import type { ServiceImplSpec } from "@connectrpc/connect";
import { createMethodUrl } from "@connectrpc/connect/protocol";
import { createCompressions } from "./compression.ts";
import { createConnectCodec, isCommonConnect } from "./connect.ts";
import { grpcCodec, isCommonGrpc, isGrpc } from "./grpc.ts";
import { createGrpcStream } from "./grpc-stream.ts";
import { httpError } from "./problem.ts";
import type { Handler } from "./router.ts";
import { createUnary, type ProtocolOptions } from "./unary.ts";
import { createUniversal, type Rpc } from "./universal.ts";

/** What {@link createRpc} serves, and within which limits. */
interface RpcOptions extends ProtocolOptions {
  /** Those whose calls the gate is asked about. */
  services: ServiceImplSpec[];
  /** Those that anybody may call. */
  publicServices: ServiceImplSpec[];
}

/** Serves gRPC, Connect and gRPC-Web on the paths of the services' methods. */
export function createRpc(options: RpcOptions): Handler {
  const { services, publicServices } = options;
  const toRpcs = (specs: ServiceImplSpec[], isPublic: boolean) =>
    specs
      .flatMap(({ methods }) => Object.values(methods))
      .map((spec): [string, Rpc] => [createMethodUrl("", spec.method), { spec, isPublic }]);
  const rpcs = new Map([...toRpcs(services, false), ...toRpcs(publicServices, true)]);
  const jsonOptions = {
    alwaysEmitImplicit: true,
    ignoreUnknownFields: false,
    registry: createRegistry(...services.map(({ service }) => service.file)),
    textDecoder: new TextDecoder("utf-8", { fatal: true }),
  };
  const compressions = createCompressions();
  const connectCodec = createConnectCodec(jsonOptions, compressions);
  const serveUnary = createUnary(options);
  const serveStream = createGrpcStream(options);
  const serveUniversal = createUniversal({ ...options, jsonOptions, compressions }, rpcs.values());

  return (exchange) => {
    const rpc = rpcs.get(exchange.path);
    if (rpc === undefined) return undefined;
    const { spec, isPublic } = rpc;
    if (spec.kind === "server_streaming" && isCommonGrpc(exchange)) {
      return serveStream(spec, exchange, isPublic);
    }
    if (spec.kind === "unary") {
      if (isCommonGrpc(exchange)) return serveUnary(grpcCodec, spec, exchange, isPublic);
      if (isCommonConnect(exchange)) return serveUnary(connectCodec, spec, exchange, isPublic);
    }
    if (isGrpc(exchange) && exchange.httpVersion !== "2") {
      throw httpError(415, "gRPC needs HTTP/2");
    }
    return serveUniversal(rpc, exchange);
  };
}
