import { createClient, type Interceptor, type Transport } from "@connectrpc/connect";
import {
  createConnectTransport,
  createGrpcTransport,
  createGrpcWebTransport,
} from "@connectrpc/connect-node";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";

/** Where a service on this machine listens. */
export interface Address {
  readonly port: number;
}

interface ClientOptions {
  /** The header that tells who calls. */
  authorization?: string | undefined;
  /** What a client by TLS trusts, and what it shows. */
  tls?: { ca: string; cert?: string; key?: string };
  /** The version of HTTP below all but gRPC. */
  httpVersion?: "1.1" | "2";
  useBinaryFormat?: boolean;
  /** How long a call may take. */
  timeoutMs?: number;
}

/** Clients of the service by every RPC protocol, each with connections of its own. */
export function clientsOf({ port }: Address, options: ClientOptions = {}) {
  const { authorization, tls, httpVersion = "1.1", useBinaryFormat = true, timeoutMs } = options;
  const authorize: Interceptor = (next) => (req) => {
    if (authorization !== undefined) req.header.set("authorization", authorization);
    return next(req);
  };
  const common = {
    ...{ interceptors: [authorize], useBinaryFormat },
    ...(tls && { nodeOptions: tls }),
    ...(timeoutMs && { defaultTimeoutMs: timeoutMs }),
  };
  const baseUrl = tls ? `https://localhost:${port}` : `http://127.0.0.1:${port}`;
  const http = { ...common, baseUrl, httpVersion };
  const clientBy = (transport: Transport) => createClient(InvestorService, transport);
  return {
    gRPC: clientBy(createGrpcTransport({ ...common, baseUrl })),
    Connect: clientBy(createConnectTransport(http)),
    "Connect by GET": clientBy(createConnectTransport({ ...http, useHttpGet: true })),
    "gRPC-Web": clientBy(createGrpcWebTransport(http)),
  };
}
