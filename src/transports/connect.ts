import type { ServerResponse } from "node:http";
import { createRegistry } from "@bufbuild/protobuf";
import {
  createContextKey,
  createContextValues,
  type Interceptor,
  type MethodImpl,
  type ServiceImplSpec,
} from "@connectrpc/connect";
import { createMethodUrl } from "@connectrpc/connect/protocol";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import type { Gate } from "../calls/gate.ts";
import { type HttpHandler, pathOf } from "./http.ts";

/** What a {@link createConnectHandler Connect handler} serves, and within which limits. */
export interface ConnectHandlerOptions {
  services: ServiceImplSpec[];
  interceptors: Interceptor[];
  gate: Gate;
  /** The largest message to take, decompressed, in bytes. */
  maxMessageBytes: number;
}

const responseKey = createContextKey<ServerResponse | undefined>(undefined);

/** Serves Connect and gRPC-Web on the paths of the services' methods. */
export function createConnectHandler(options: ConnectHandlerOptions): HttpHandler {
  const { services, interceptors, gate, maxMessageBytes } = options;
  const implementations = services.flatMap(({ methods }) => Object.values(methods));
  const paths = new Set(implementations.map(({ method }) => createMethodUrl("", method)));
  const responses = new WeakMap<object, ServerResponse>();

  const adapter = connectNodeAdapter({
    routes(router) {
      for (const { method, impl } of implementations) router.rpc(method, impl as MethodImpl<never>);
    },
    interceptors,
    // HTTP/1.1 cannot carry it.
    grpc: false,
    readMaxBytes: maxMessageBytes,
    jsonOptions: {
      alwaysEmitImplicit: true,
      ignoreUnknownFields: false,
      registry: createRegistry(...services.map(({ service }) => service.file)),
    },
    contextValues: (req) => createContextValues().set(responseKey, responses.get(req)),
    requestGate(context) {
      context.values.get(responseKey)?.once("close", gate.enter());
    },
  });

  return (req, res) => {
    if (!paths.has(pathOf(req))) return false;
    responses.set(req, res);
    res.setHeader("cache-control", "no-store");
    adapter(req, res);
    return true;
  };
}
