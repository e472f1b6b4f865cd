import { connect } from "node:http2";
import { type Client, createClient } from "@connectrpc/connect";
import {
  createConnectTransport,
  createGrpcTransport,
  createGrpcWebTransport,
} from "@connectrpc/connect-node";
import { propagation, SpanKind, SpanStatusCode, trace } from "@opentelemetry/api";
import {
  AlwaysOnSampler,
  InMemorySpanExporter,
  NodeTracerProvider,
  type ReadableSpan,
  SimpleSpanProcessor,
} from "@opentelemetry/sdk-trace-node";
import { pino } from "pino";
import { v7 } from "uuid";
import { afterAll, beforeAll, beforeEach, describe, expect, it, onTestFinished } from "vitest";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { startServer } from "../../src/server.ts";
import { createAuthority, writeServerFiles } from "../support/certificates.ts";
import { failureOf } from "../support/errors.ts";
import { temporaryFolder } from "../support/folder.ts";
import { openCall, rawConnection } from "../support/raw-grpc.ts";
import { breakDatabase, metric } from "../support/service.ts";
import { readVariables } from "../support/settings.ts";

interface Ports {
  grpcPort: number;
  httpPort: number;
}

interface Started extends Ports {
  folder: string;
  /** The lines of its log. */
  lines: Record<string, unknown>[];
}

const traceId = "0af7651916cd43dd8448eb211c80319c";
const spanId = "b7ad6b7169203331";
const headers = { traceparent: `00-${traceId}-${spanId}-01` };

const exporter = new InMemorySpanExporter();
const provider = new NodeTracerProvider({
  sampler: new AlwaysOnSampler(),
  spanProcessors: [new SimpleSpanProcessor(exporter)],
});

/** The service in this process, whose SDK is seen by it. */
async function startHere(environment: NodeJS.ProcessEnv = {}): Promise<Started> {
  const folder = temporaryFolder();
  const lines: Record<string, unknown>[] = [];
  const log = pino({ level: "debug" }, { write: (line) => void lines.push(JSON.parse(line)) });
  const settings = {
    GRPC_PORT: "0",
    HTTP_PORT: "0",
    DATABASE_URL: `sqlite:${folder}/data/investors.db`,
    ...environment,
  };
  const server = await startServer(readVariables(settings), log, (error) => {
    throw error;
  });
  onTestFinished(async () => void (await server.stop()));
  const { grpcPort, httpPort } = server;
  return { grpcPort, httpPort, folder, lines };
}

/** The one span that is there, once it has ended. */
async function onlySpan(): Promise<ReadableSpan> {
  await expect.poll(() => exporter.getFinishedSpans().length).toBe(1);
  const [span] = exporter.getFinishedSpans();
  if (span === undefined) throw new Error("there is none");
  return span;
}

const grpcUrl = ({ grpcPort }: Ports) => `http://127.0.0.1:${grpcPort}`;
const httpUrl = ({ httpPort }: Ports) => `http://127.0.0.1:${httpPort}`;
const http1 = (ports: Ports) => ({ baseUrl: httpUrl(ports), httpVersion: "1.1" as const });
const http2 = (ports: Ports) => ({ baseUrl: grpcUrl(ports), httpVersion: "2" as const });

type Connects = (ports: Ports) => Client<typeof InvestorService>;

const rpcs: [name: string, system: string, connects: Connects][] = [
  [
    "gRPC",
    "grpc",
    (ports) => createClient(InvestorService, createGrpcTransport({ baseUrl: grpcUrl(ports) })),
  ],
  ...(
    [
      ["HTTP/1.1", http1],
      ["HTTP/2", http2],
    ] as const
  ).flatMap(([version, options]): [string, string, Connects][] => [
    [
      `Connect on ${version}`,
      "connectrpc",
      (ports) => createClient(InvestorService, createConnectTransport(options(ports))),
    ],
    [
      `Connect by GET on ${version}`,
      "connectrpc",
      (ports) =>
        createClient(
          InvestorService,
          createConnectTransport({ ...options(ports), useHttpGet: true }),
        ),
    ],
    [
      `gRPC-Web on ${version}`,
      "grpc",
      (ports) => createClient(InvestorService, createGrpcWebTransport(options(ports))),
    ],
  ]),
];

beforeAll(() => provider.register());

beforeEach(() => exporter.reset());

afterAll(async () => {
  await provider.shutdown();
  trace.disable();
  propagation.disable();
});

describe.each(rpcs)("a call by %s", (name, system, connects) => {
  const isConnect = system === "connectrpc";
  // This client resets the stream as soon as it has the last message.
  const ok = name === "gRPC-Web on HTTP/2" ? expect.stringMatching(/^(OK|CANCELLED)$/) : "OK";

  it("is one server span under that of its caller", async () => {
    const server = await startHere();
    await connects(server).listInvestors({}, { headers });
    const span = await onlySpan();
    expect(span.name).toBe("investor.v1.InvestorService/ListInvestors");
    expect(span.kind).toBe(SpanKind.SERVER);
    expect(span.spanContext().traceId).toBe(traceId);
    expect(span.parentSpanContext).toMatchObject({ traceId, spanId, isRemote: true });
    expect(span.status.code).toBe(SpanStatusCode.UNSET);
    const { "server.port": port, ...attributes } = span.attributes;
    expect([server.grpcPort, server.httpPort]).toContain(port);
    expect(attributes).toEqual({
      "rpc.system.name": system,
      "rpc.method": "investor.v1.InvestorService/ListInvestors",
      ...(!isConnect && { "rpc.status_code": ok }),
      "server.address": "127.0.0.1",
      "network.peer.address": "127.0.0.1",
      "network.peer.port": expect.any(Number),
    });
    expect(server.lines.filter(({ code }) => code !== undefined)).toMatchObject([{ traceId }]);
  });

  it("is no error of the service if its caller is wrong", async () => {
    const server = await startHere();
    await failureOf(connects(server).getInvestor({ id: v7() }, { headers }));
    const span = await onlySpan();
    expect(span.name).toBe("investor.v1.InvestorService/GetInvestor");
    expect(span.attributes["rpc.status_code"]).toBe(isConnect ? "not_found" : "NOT_FOUND");
    expect(span.attributes).not.toHaveProperty("error.type");
    expect(span.status.code).toBe(SpanStatusCode.UNSET);
  });

  it("is an error if the service is at fault, without a word of the cause", async () => {
    const server = await startHere();
    breakDatabase(server);
    await failureOf(connects(server).getInvestor({ id: v7() }, { headers }));
    const span = await onlySpan();
    const code = isConnect ? "internal" : "INTERNAL";
    expect(span.attributes).toMatchObject({ "rpc.status_code": code, "error.type": code });
    expect(span.status).toEqual({ code: SpanStatusCode.ERROR });
    expect(span.events).toEqual([]);
    expect(server.lines.filter(({ level }) => level === 50)).toMatchObject([
      { msg: "internal error", traceId },
      { msg: "call failed", traceId },
    ]);
  });
});

describe("a call by plain JSON", () => {
  it.each([
    ["GET", "/v1/investors", "/v1/investors", "/v1/investors", 200],
    ["HEAD", "/v1/investors", "/v1/investors", "/v1/investors", 200],
    ["GET", "/v1/investors?pageSize=1", "/v1/investors", "/v1/investors", 200],
    ["GET", "/v1/investors?firstName=Ada", "/v1/investors", "/v1/investors", 400],
    ["POST", "/v1/investors", "/v1/investors", "/v1/investors", 415],
    ["GET", "/v1/investors/Ada", "/v1/investors/{id}", "/v1/investors/REDACTED", 404],
  ])("is one server span of HTTP: %s %s", async (method, path, route, logged, status) => {
    const server = await startHere();
    await fetch(`${httpUrl(server)}${path}`, { method, headers });
    const span = await onlySpan();
    expect(span.name).toBe(`${method} ${route}`);
    expect(span.kind).toBe(SpanKind.SERVER);
    expect(span.parentSpanContext).toMatchObject({ traceId, spanId });
    expect(span.status.code).toBe(SpanStatusCode.UNSET);
    expect(span.attributes).toEqual({
      "http.request.method": method,
      "http.route": route,
      "http.response.status_code": status,
      "url.path": logged,
      "url.scheme": "http",
      "network.protocol.version": "1.1",
      "server.address": "127.0.0.1",
      "server.port": server.httpPort,
      "network.peer.address": "127.0.0.1",
      "network.peer.port": expect.any(Number),
    });
  });

  it("is an error if the service is at fault", async () => {
    const server = await startHere();
    breakDatabase(server);
    const id = v7();
    await fetch(`${httpUrl(server)}/v1/investors/${id}`, { headers });
    const span = await onlySpan();
    expect(span.attributes).toMatchObject({
      "url.path": `/v1/investors/${id}`,
      "http.response.status_code": 500,
      "error.type": "INTERNAL",
    });
    expect(span.status).toEqual({ code: SpanStatusCode.ERROR });
    expect(span.events).toEqual([]);
  });

  it("is one server span on HTTP/2 and TLS too", async () => {
    const authority = await createAuthority();
    const server = await startHere(await writeServerFiles(temporaryFolder(), authority));
    const session = connect(`https://localhost:${server.httpPort}`, { ca: authority.ca });
    onTestFinished(() => session.destroy());
    session.request({ ":path": "/v1/investors", ...headers }).resume();
    const span = await onlySpan();
    expect(span.name).toBe("GET /v1/investors");
    expect(span.parentSpanContext).toMatchObject({ traceId, spanId });
    expect(span.attributes).toMatchObject({
      "http.response.status_code": 200,
      "url.scheme": "https",
      "network.protocol.version": "2",
      "server.address": "localhost",
      "server.port": server.httpPort,
    });
  });
});

it("a call that nobody waits for any more is cancelled", async () => {
  const server = await startHere();
  const session = rawConnection(server.grpcPort);
  openCall(session, "/investor.v1.InvestorService/CreateInvestor");
  await expect.poll(() => metric(server, "investor_records_rpc_server_calls_in_flight")).toBe(1);
  session.destroy();
  const span = await onlySpan();
  expect(span.attributes["rpc.status_code"]).toBe("CANCELLED");
  expect(span.parentSpanContext).toBeUndefined();
  expect(span.status.code).toBe(SpanStatusCode.UNSET);
});
