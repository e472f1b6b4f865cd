/** The ways to call a service, each with a connection of its own. */
import { create } from "@bufbuild/protobuf";
import { createClient, type Transport } from "@connectrpc/connect";
import {
  createConnectTransport,
  createGrpcTransport,
  createGrpcWebTransport,
} from "@connectrpc/connect-node";
import {
  type Investor,
  InvestorSchema,
  InvestorService,
  InvestorType,
} from "../../gen/investor/v1/investor_pb.js";
import { textFields, typeNames, typesByName } from "../../src/investor.ts";
import { failureOf } from "../support/errors.ts";
import type { Service } from "../support/service.ts";
import type { CreateRequest, FailedCall } from "./history.ts";

/** Calls that fail reject with a {@link CallError}. */
export interface Way {
  readonly name: string;
  create(request: CreateRequest, options?: CallOptions): Promise<Investor>;
  get(id: string): Promise<Investor>;
  page(size: number, token: string): Promise<Page>;
  /** The whole list, where there is one. */
  list?(): Promise<Investor[]>;
}

/** How a caller loses patience. */
export interface CallOptions {
  /** The deadline that the service is told, in milliseconds. */
  deadlineMs?: number;
  /** When the caller leaves without a word, in milliseconds. */
  leavesAfterMs?: number;
}

/** Some records, and the token of those that follow, if any. */
export interface Page {
  investors: Investor[];
  nextPageToken: string;
}

/** A failed call. */
export class CallError extends Error {
  readonly failure: FailedCall;
  constructor(failure: FailedCall) {
    super(`${failure.reason} ${failure.message}`);
    this.failure = failure;
  }
}

/** Timeout of a call whose caller has no other, in milliseconds. */
const patienceMs = 20_000;

/** Makes every way to call a service. */
export function waysTo({ grpcPort, httpPort }: Pick<Service, "grpcPort" | "httpPort">): Way[] {
  const grpc = { baseUrl: `http://127.0.0.1:${grpcPort}` };
  const http = { baseUrl: `http://127.0.0.1:${httpPort}`, httpVersion: "1.1" } as const;
  return [
    byRpc("gRPC", createGrpcTransport(grpc)),
    byRpc("Connect", createConnectTransport({ ...http, useBinaryFormat: true })),
    byRpc("Connect with JSON", createConnectTransport({ ...http, useBinaryFormat: false })),
    byRpc("gRPC-Web", createGrpcWebTransport(http)),
    byRest(http.baseUrl),
  ];
}

function byRpc(name: string, transport: Transport): Way {
  const client = createClient(InvestorService, transport);
  const told = async <T>(call: Promise<T>) => {
    return call.catch(async () => {
      const { reason = "", message, metadata } = await failureOf(call);
      throw new CallError({ reason, message, id: metadata?.id });
    });
  };
  const signal = () => AbortSignal.timeout(patienceMs);
  return {
    name,
    create(request, { deadlineMs, leavesAfterMs = patienceMs } = {}) {
      const options = { signal: AbortSignal.timeout(leavesAfterMs) };
      const timeout = deadlineMs === undefined ? {} : { timeoutMs: deadlineMs };
      return told(client.createInvestor(request, { ...options, ...timeout }));
    },
    get: (id) => told(client.getInvestor({ id }, { signal: signal() })),
    page: (pageSize, pageToken) =>
      told(client.listInvestors({ pageSize, pageToken }, { signal: signal() })),
  };
}

type Json = Record<string, string>;

function byRest(baseUrl: string): Way {
  async function ask<T>(path: string, init: RequestInit = {}, leavesAfterMs = patienceMs) {
    let problem: { reason: string; detail: string; metadata?: { id?: string } };
    try {
      const signal = AbortSignal.timeout(leavesAfterMs);
      const reply = await fetch(`${baseUrl}/v1/investors${path}`, { ...init, signal });
      // A list that breaks off is no JSON.
      const body = await reply.json();
      if (reply.ok) return { body: body as T, link: reply.headers.get("link") };
      problem = body as typeof problem;
    } catch (error) {
      throw new CallError({ reason: "", message: String((error as Error).cause ?? error) });
    }
    const { reason, detail: message, metadata } = problem;
    throw new CallError({ reason, message, id: metadata?.id });
  }

  return {
    name: "REST",
    async create({ requestId, type, ...texts }, { leavesAfterMs } = {}) {
      const key: Record<string, string> = requestId ? { "idempotency-key": requestId } : {};
      const headers = { "content-type": "application/json", ...key };
      const body = JSON.stringify({ ...texts, type: typeNames.get(type as InvestorType) });
      return toInvestor(
        (await ask<Json>("", { method: "POST", headers, body }, leavesAfterMs)).body,
      );
    },
    get: async (id) => toInvestor((await ask<Json>(`/${id}`)).body),
    async page(pageSize, pageToken) {
      const query = new URLSearchParams({ pageSize: String(pageSize), pageToken });
      const { body, link } = await ask<Json[]>(`?${query}`);
      const nextPageToken = /pageToken=([^&>]*)/.exec(link ?? "")?.[1] ?? "";
      return { investors: body.map(toInvestor), nextPageToken };
    },
    list: async () => (await ask<Json[]>("")).body.map(toInvestor),
  };
}

function toInvestor(json: Json): Investor {
  const texts = Object.fromEntries(textFields.map((field) => [field, json[field] ?? ""]));
  const type = typesByName.get(json.type ?? "") ?? InvestorType.UNSPECIFIED;
  return create(InvestorSchema, { ...texts, id: json.id ?? "", type });
}
