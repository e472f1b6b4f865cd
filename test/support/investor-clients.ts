import {
  createConnectTransport,
  createGrpcTransport,
  createGrpcWebTransport,
} from "@connectrpc/connect-node";
import { credentials } from "@grpc/grpc-js";
import { expect, onTestFinished } from "vitest";
import * as connect from "../../client/src/connect.ts";
import * as grpc from "../../client/src/grpc.ts";
import type { Address } from "./clients.ts";

/** The client of the package over grpc-js, until the end of the test. */
export function overGrpc(address: string, options?: grpc.GrpcClientOptions): grpc.InvestorClient {
  const client = grpc.createInvestorClient(address, credentials.createInsecure(), options);
  onTestFinished(() => client.close());
  return client;
}

/** The client of the package over each transport. */
export function investorClients(
  { port, http1Port = port }: Address & { http1Port?: number },
  options?: grpc.InvestorClientOptions,
): Record<string, grpc.InvestorClient> {
  const ofHttp1 = { baseUrl: `http://localhost:${http1Port}`, httpVersion: "1.1" } as const;
  const ofHttp2 = { baseUrl: `http://localhost:${port}`, httpVersion: "2" } as const;
  const asJson = { useBinaryFormat: false };
  const transports = {
    "Connect over HTTP/1.1": createConnectTransport(ofHttp1),
    "Connect over HTTP/2": createConnectTransport({ ...ofHttp2, ...asJson }),
    "gRPC-Web": createGrpcWebTransport({ ...ofHttp1, ...asJson }),
    "Connect's gRPC": createGrpcTransport({ ...ofHttp2, ...asJson }),
  };
  const overConnect = Object.entries(transports).map(([name, transport]) => [
    name,
    connect.createInvestorClient(transport, options),
  ]);
  return {
    "grpc-js": overGrpc(`localhost:${port}`, options),
    ...Object.fromEntries(overConnect),
  };
}

/** The error of a call that must fail, by whichever copy of the client. */
export async function errorOf(call: Promise<unknown>): Promise<grpc.InvestorError> {
  const error = await call.then(
    () => new Error("the call succeeded"),
    (reason) => reason,
  );
  expect(error).toBeInstanceOf(grpc.InvestorError);
  return error;
}
