import { randomBytes } from "node:crypto";
import type { IncomingHttpHeaders } from "node:http";
import type { ServerHttp2Stream } from "node:http2";
import { createRegistry } from "@bufbuild/protobuf";
import { MethodOptions_IdempotencyLevel as IdempotencyLevel } from "@bufbuild/protobuf/wkt";
import { Code, type ServiceImplSpec } from "@connectrpc/connect";
import { createMethodUrl } from "@connectrpc/connect/protocol";
import type { Gate } from "../calls/gate.ts";
import type { Telemetry } from "../calls/telemetry.ts";
import { Failure, internal } from "../failures.ts";
import type { Connection } from "../http/connection.ts";
import { allowOrigin, authorityOf, findCrossOrigin, hasTwoHosts } from "../http/cross-origin.ts";
import { type HttpResponse, ignore, prepareReply } from "../http/reply.ts";
import { type HttpRequest, pathOf } from "../http/request.ts";
import { limits } from "../limits.ts";
import { createCompressions } from "./compression.ts";
import { createConnectCodec, isConnect, setTypeOfGet } from "./connect.ts";
import { createGrpcCodec, isGrpc, sendStatus } from "./grpc.ts";
import { createGrpcWebCodec, isGrpcWeb } from "./grpc-web.ts";
import { createMessages } from "./messages.ts";
import { httpError, methodNotAllowed, sendProblem } from "./problem.ts";
import { createStreams } from "./streams.ts";
import { createUnary, type Rpc, type UnaryRpc } from "./unary.ts";

/** Serves a request, or returns undefined to leave it to the next handler. */
export type Handler = (
  connection: Connection,
  req: HttpRequest,
  res: HttpResponse,
) => Promise<void> | undefined;

export interface RouterOptions {
  gate: Gate;
  /** Services whose calls the gate counts. */
  services: ServiceImplSpec[];
  /** Services that anybody may call. */
  publicServices: ServiceImplSpec[];
  /** The origins whose web pages may call, or `*` for any; empty for none (CORS). */
  corsOrigins: string[];
  /**
   * The hosts that requests may name; with them, cross-origin requests are rejected too. Absent: no
   * check.
   */
  hosts: ReadonlySet<string> | undefined;
  telemetry: Telemetry;
  /** The largest message to take, unpacked, in bytes. */
  maxMessageBytes?: number;
}

/** A host or an origin. Any other header value is not logged. */
const namesHost = /^([a-z]+:\/\/)?[\w.:[\]-]{1,255}$/;

/** Paths that load balancers request under any host or, over HTTP/1.0, none. Useless to web pages. */
const probes = ["/healthz", "/readyz"];

/** The start of a target in absolute form (RFC 9112, section 3.2.2). */
const absoluteForm = /^https?:\/\/([^/?]+)\/?/i;

/**
 * Creates the router, which replies to every request, even after unexpected errors.
 *
 * @param handlers serve what is no RPC; the first that does
 */
export function createRouter(options: RouterOptions, handlers: Handler[]) {
  const { gate, services, publicServices, corsOrigins, hosts } = options;
  const { maxMessageBytes = limits.requestBytes } = options;
  const rpcs = new Map<string, Rpc>();
  for (const service of [...services, ...publicServices]) {
    const isPublic = publicServices.includes(service);
    const maxBytes = isPublic ? limits.publicRequestBytes : maxMessageBytes;
    for (const spec of Object.values(service.methods)) {
      rpcs.set(createMethodUrl("", spec.method), { spec, isPublic, maxBytes });
    }
  }
  const jsonOptions = {
    alwaysEmitImplicit: true,
    ignoreUnknownFields: false,
    registry: createRegistry(...services.map(({ service }) => service.file)),
    textDecoder: new TextDecoder("utf-8", { fatal: true }),
  };
  const compressions = createCompressions();
  const messages = createMessages(jsonOptions, compressions);
  const connectCodec = createConnectCodec(messages, jsonOptions);
  const grpcCodec = createGrpcCodec(messages);
  const grpcWebCodec = createGrpcWebCodec(messages);
  const serveUnary = createUnary(gate);
  const serveStream = createStreams(gate, rpcs.values(), jsonOptions, compressions);

  function requireKnownHost(headers: IncomingHttpHeaders, connection: Connection): void {
    const detail = hosts && findCrossOrigin(headers, hosts, corsOrigins);
    if (detail === undefined) return;
    const { address: peer } = connection.peer;
    const host = namesHost.exec(authorityOf(headers))?.[0];
    const origin = namesHost.exec(headers.origin ?? "")?.[0];
    options.telemetry.logRefusal({ reason: "CROSS_ORIGIN", peer, host, origin, detail });
    throw httpError(403, detail);
  }

  function route(connection: Connection, req: HttpRequest, res: HttpResponse) {
    const { headers } = req;
    if (hasTwoHosts(req)) throw httpError(400, "the request has more than one Host");
    const [start, host] = absoluteForm.exec(req.url ?? "") ?? [];
    if (start !== undefined) {
      req.url = `/${req.url?.slice(start.length)}`;
      headers.host = host;
    }
    const path = pathOf(req);
    const rpc = rpcs.get(path);
    if (!rpc?.isPublic && !probes.includes(path)) requireKnownHost(headers, connection);
    if (!rpc?.isPublic && !URL.canParse(`http://${authorityOf(headers) || "localhost"}`)) {
      throw httpError(400, "the Host of the request is not a name or an address");
    }
    if (req.method === "CONNECT") throw methodNotAllowed(req, "GET, HEAD, POST");
    if (allowOrigin(req, res, corsOrigins)) return void prepareReply(connection, req, res);
    if (rpc) return serveRpc(rpc, connection, req, res);
    for (const handle of handlers) {
      const handled = handle(connection, req, res);
      if (handled !== undefined) return handled;
    }
    throw isGrpc(headers)
      ? new Failure("unknown method", { code: Code.Unimplemented })
      : httpError(404, "there is nothing at this path");
  }

  function serveRpc(rpc: Rpc, connection: Connection, req: HttpRequest, res: HttpResponse) {
    const { headers } = req;
    const isRead = rpc.spec.method.idempotency === IdempotencyLevel.NO_SIDE_EFFECTS;
    if (req.method !== "POST" && !(isRead && req.method === "GET")) {
      const allow = isRead ? "POST, GET" : "POST";
      throw httpError(405, `the method must be ${allow}`, { allow });
    }
    if (isGrpc(headers) && !isUnary(rpc)) {
      return serveStream(grpcCodec, rpc, connection, req, res);
    }
    if (req.method === "GET") setTypeOfGet(req);
    const isWeb = isGrpcWeb(req);
    if (!isWeb && !isConnect(req, isUnary(rpc))) throw httpError(415, describeTypes(rpc, req));
    const codec = isWeb ? grpcWebCodec : connectCodec;
    return isUnary(rpc)
      ? serveUnary(codec, rpc, connection, headers, req, res)
      : serveStream(codec, rpc, connection, req, res);
  }

  /** Runs the work on a request. An error becomes the reply or, once a reply has begun, cuts it off. */
  async function guard(
    work: () => Promise<void> | undefined,
    reply: { readonly headersSent: boolean; destroy(): unknown },
    sendError: (failure: Failure) => void,
  ): Promise<void> {
    try {
      await work();
    } catch (error) {
      try {
        if (reply.headersSent) reply.destroy();
        else sendError(error instanceof Failure ? error : toInternal(error));
      } catch {
        reply.destroy();
      }
    }
  }

  function toInternal(error: unknown): Failure {
    const id = randomBytes(16).toString("hex");
    options.telemetry.logFault(error, id);
    return internal(id, error);
  }

  return {
    /** Serves a request: RPCs itself, others through the handlers. */
    serve(connection: Connection, req: HttpRequest, res: HttpResponse): void {
      req.on("error", ignore);
      res.on("error", ignore);
      const sendError = (failure: Failure) => {
        prepareReply(connection, req, res);
        if (res.stream && isGrpc(req.headers)) sendStatus(res.stream, req.headers, failure);
        else sendProblem(res, failure);
      };
      guard(() => route(connection, req, res), res, sendError);
    },
    /** The function to serve a unary gRPC call on its stream; undefined for other streams. */
    streamServer(connection: Connection, stream: ServerHttp2Stream, headers: IncomingHttpHeaders) {
      const rpc = rpcs.get(pathOf({ url: String(headers[":path"]) }));
      if (rpc === undefined || !isUnary(rpc) || !isGrpc(headers)) return undefined;
      const work = () => {
        if (!rpc.isPublic) requireKnownHost(headers, connection);
        return serveUnary(grpcCodec, rpc, connection, headers, stream, stream);
      };
      return () => void guard(work, stream, (failure) => sendStatus(stream, headers, failure));
    },
  };
}

/** Says how a method's messages can be sent, in place of the way in which this request sends them. */
function describeTypes(rpc: Rpc, req: HttpRequest): string {
  if (req.method === "GET") return "the parameter encoding must be json or proto";
  const isGrpcType = /^application\/grpc(?!-)/.test(req.headers["content-type"] ?? "");
  if (isGrpcType && !("stream" in req)) return "gRPC needs HTTP/2";
  const connect = isUnary(rpc) ? "application/" : "application/connect+";
  return `the Content-Type must be ${connect}json, ${connect}proto, application/grpc or application/grpc-web`;
}

function isUnary(rpc: Rpc): rpc is UnaryRpc {
  return rpc.spec.kind === "unary";
}
