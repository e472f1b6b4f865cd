import type { IncomingMessage, ServerResponse } from "node:http";
import { createRegistry } from "@bufbuild/protobuf";
import {
  createContextKey,
  createContextValues,
  type HandlerContext,
  type Interceptor,
  type MethodImpl,
  type ServiceImplSpec,
} from "@connectrpc/connect";
import { createMethodUrl } from "@connectrpc/connect/protocol";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import type { Call } from "../calls/call.ts";
import type { Gate } from "../calls/gate.ts";
import { malformedRequest } from "../service/errors.ts";
import { createConnectUnary, isCommonForm } from "./connect-unary.ts";
import { pathOf, toHead } from "./exchange.ts";
import type { HttpHandler } from "./http.ts";

/** What a {@link createConnectHandler Connect handler} serves, and within which limits. */
export interface ConnectHandlerOptions {
  services: ServiceImplSpec[];
  interceptors: Interceptor[];
  gate: Gate;
  /** The largest message to take, decompressed, in bytes. */
  maxMessageBytes: number;
}

/** The request and response of a call, which connect-node keeps to itself. */
const exchangeKey = createContextKey<[IncomingMessage, ServerResponse] | undefined>(undefined);

/** Whether the message of a call could be decoded, which connect-node does past its interceptors. */
const decodedKey = createContextKey(false);

/** Serves Connect and gRPC-Web on the paths of the services' methods. */
export function createConnectHandler(options: ConnectHandlerOptions): HttpHandler {
  const { services, interceptors, gate, maxMessageBytes } = options;
  const implementations = services.flatMap(({ methods }) => Object.values(methods));
  const specs = new Map(implementations.map((spec) => [createMethodUrl("", spec.method), spec]));
  const responses = new WeakMap<object, ServerResponse>();

  async function enter(context: HandlerContext): Promise<void> {
    const { method, protocolName, values } = context;
    const [req, res] = values.get(exchangeKey) ?? [];
    if (req === undefined || res === undefined) throw new Error("the call came by no request");
    const transport = protocolName === "grpc-web" ? "grpc-web" : "connect";
    const call = await gate.enter({ method, transport, values, ...toHead(req, res) });
    // A context of connect-node can be aborted, which its type does not tell.
    call.abort = (context as HandlerContext & Pick<Call, "abort">).abort;
    res.once("finish", () => {
      if (!values.get(decodedKey)) call.fail(malformedRequest());
    });
  }

  const jsonOptions = {
    alwaysEmitImplicit: true,
    ignoreUnknownFields: false,
    registry: createRegistry(...services.map(({ service }) => service.file)),
  };
  const answerUnary = createConnectUnary({ interceptors, gate, maxMessageBytes, jsonOptions });

  const adapter = connectNodeAdapter({
    routes(router) {
      for (const { method, impl } of implementations) router.rpc(method, impl as MethodImpl<never>);
    },
    interceptors: [noteDecoded, ...interceptors],
    // HTTP/1.1 cannot carry it.
    grpc: false,
    readMaxBytes: maxMessageBytes,
    jsonOptions,
    contextValues(req) {
      const res = responses.get(req) as ServerResponse;
      return createContextValues().set(exchangeKey, [req as IncomingMessage, res]);
    },
    requestGate: enter,
  });

  return (req, res) => {
    const spec = specs.get(pathOf(req));
    if (spec === undefined) return false;
    if (spec.kind === "unary" && isCommonForm(req)) {
      void answerUnary(spec, req, res);
    } else {
      responses.set(req, res);
      res.setHeader("cache-control", "no-store");
      if (req.httpVersionMajor === 1) keepConnection(req, res);
      adapter(req, res);
    }
    return true;
  };
}

const noteDecoded: Interceptor = (next) => (req) => {
  req.contextValues.set(decodedKey, true);
  return next(req);
};

/**
 * Lets a connection be used again after a request that connect-node answers before it has read
 * all of it: leaving its iterator would destroy it, and what is left is read and dropped.
 */
function keepConnection(req: IncomingMessage, res: ServerResponse): void {
  req[Symbol.asyncIterator] = () => req.iterator({ destroyOnReturn: false });
  res.once("finish", () => {
    if (req.complete) return;
    req.removeAllListeners("readable");
    // The stream notices a turn later that nobody listens any more.
    setImmediate(() => req.resume());
  });
}
