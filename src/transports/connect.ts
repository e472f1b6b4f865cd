import type { IncomingMessage, ServerResponse } from "node:http";
import { createRegistry } from "@bufbuild/protobuf";
import {
  createConnectRouter,
  createContextKey,
  createContextValues,
  type HandlerContext,
  type Interceptor,
  type MethodImpl,
  type ServiceImplSpec,
} from "@connectrpc/connect";
import { createMethodUrl } from "@connectrpc/connect/protocol";
import { setTrailerStatus } from "@connectrpc/connect/protocol-grpc-web";
import {
  compressionBrotli,
  compressionGzip,
  universalRequestFromNodeRequest,
  universalResponseToNodeResponse,
} from "@connectrpc/connect-node";
import { runCall } from "../calls/call.ts";
import type { Gate } from "../calls/gate.ts";
import { malformedRequest } from "../service/errors.ts";
import { createConnectUnary, isCommonForm } from "./connect-unary.ts";
import { pathOf, toHead } from "./exchange.ts";
import type { HttpHandler } from "./http.ts";
import { HttpError } from "./problem.ts";

/** What a {@link createConnectHandler Connect handler} serves, and within which limits. */
export interface ConnectHandlerOptions {
  services: ServiceImplSpec[];
  gate: Gate;
  /** The largest message to take, decompressed, in bytes. */
  maxMessageBytes: number;
}

/** The request and response of a call, which Connect's handlers know nothing of. */
const exchangeKey = createContextKey<[IncomingMessage, ServerResponse] | undefined>(undefined);

/** Whether the message of a call could be decoded, which Connect does past its interceptors. */
const decodedKey = createContextKey(false);

/** Serves Connect and gRPC-Web on the paths of the services' methods. */
export function createConnectHandler(options: ConnectHandlerOptions): HttpHandler {
  const { services, gate, maxMessageBytes } = options;
  const implementations = services.flatMap(({ methods }) => Object.values(methods));
  const specs = new Map(implementations.map((spec) => [createMethodUrl("", spec.method), spec]));

  async function enter(context: HandlerContext): Promise<void> {
    const { method, protocolName, values } = context;
    const [req, res] = values.get(exchangeKey) ?? [];
    if (req === undefined || res === undefined) throw new Error("the call came by no request");
    const transport = protocolName === "grpc-web" ? "grpc-web" : "connect";
    const call = await gate.admit({ method, transport, values, ...toHead(req, res) });
    // A context of Connect can be aborted, which its type does not tell.
    const { abort } = context as HandlerContext & Pick<AbortController, "abort">;
    call.signal.addEventListener("abort", () => abort(call.signal.reason));
    res.once("finish", () => {
      if (!values.get(decodedKey)) call.fail(malformedRequest());
    });
  }

  const jsonOptions = {
    alwaysEmitImplicit: true,
    ignoreUnknownFields: false,
    registry: createRegistry(...services.map(({ service }) => service.file)),
  };
  const answerUnary = createConnectUnary({ gate, maxMessageBytes, jsonOptions });

  const router = createConnectRouter({
    interceptors: [noteDecoded, runCall],
    acceptCompression: [compressionGzip, compressionBrotli],
    // HTTP/1.1 cannot carry it.
    grpc: false,
    readMaxBytes: maxMessageBytes,
    jsonOptions,
    requestGate: enter,
  });
  for (const { method, impl } of implementations) router.rpc(method, impl as MethodImpl<never>);
  const handlers = new Map(router.handlers.map((handler) => [handler.requestPath, handler]));

  /** Serves a call of any form by Connect's own handlers. */
  async function serve(req: IncomingMessage, res: ServerResponse): Promise<void> {
    const handler = handlers.get(pathOf(req));
    if (handler === undefined) throw new Error(`no handler for ${pathOf(req)}`);
    res.setHeader("cache-control", "no-store");
    if (req.httpVersionMajor === 1) keepConnection(req, res);
    const request = toUniversal(req, res);
    try {
      await universalResponseToNodeResponse(await handler(request), res);
    } catch (error) {
      // gRPC-Web cannot send an error of Connect that repeats unpaired surrogates of the request.
      if (!(error instanceof URIError) || res.headersSent) throw error;
      const trailers = setTrailerStatus(new Headers(), malformedRequest());
      const contentType = String(req.headers["content-type"]);
      res.writeHead(200, { ...Object.fromEntries(trailers), "content-type": contentType }).end();
    }
  }

  return (req, res) => {
    const spec = specs.get(pathOf(req));
    if (spec === undefined) return undefined;
    return spec.kind === "unary" && isCommonForm(req)
      ? answerUnary(spec, req, res)
      : serve(req, res);
  };
}

/**
 * The request in the form that Connect's handlers take.
 *
 * @throws {HttpError} 400, if its Host is no name
 */
function toUniversal(req: IncomingMessage, res: ServerResponse) {
  const values = createContextValues().set(exchangeKey, [req, res]);
  try {
    return universalRequestFromNodeRequest(req, res, undefined, values);
  } catch {
    throw new HttpError(400, "the Host of the request is not a name or an address");
  }
}

const noteDecoded: Interceptor = (next) => (req) => {
  req.contextValues.set(decodedKey, true);
  return next(req);
};

/**
 * Lets a connection be used again after a request that Connect replies to before it has read
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
