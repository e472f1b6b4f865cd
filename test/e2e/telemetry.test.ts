import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { text } from "node:stream/consumers";
import { createClient } from "@connectrpc/connect";
import { createConnectTransport, createGrpcWebTransport } from "@connectrpc/connect-node";
import { v7 } from "uuid";
import { describe, expect, it, onTestFinished } from "vitest";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { failureOf } from "../support/errors.ts";
import { aCreate } from "../support/records.ts";
import {
  breakDatabase,
  grpcClient,
  lockDatabase,
  metric,
  type Service,
  startService,
} from "../support/service.ts";

const url = ({ httpPort }: Service, path = "") => `http://127.0.0.1:${httpPort}${path}`;
const http = (service: Service) => ({ baseUrl: url(service), httpVersion: "1.1" as const });
const traceId = "0af7651916cd43dd8448eb211c80319c";
const traceparent = `00-${traceId}-b7ad6b7169203331-01`;

/** How many calls of a method ended with a code. */
const count = (service: Service, method: string, code: string, transport: string) =>
  metric(
    service,
    "rpc_server_call_duration_seconds_count",
    `{method="investor.v1.InvestorService/${method}",code="${code}",transport="${transport}"}`,
  );

/** The lines of the log that tell of calls. */
const logged = (service: Service): Record<string, unknown>[] =>
  service
    .output()
    .split("\n")
    .filter((line) => line.startsWith("{"))
    .map((line) => JSON.parse(line))
    .filter(({ method }) => method !== undefined);

describe("metrics", () => {
  it("count every call by method, code and transport", async () => {
    const service = await startService();
    const clients = {
      grpc: grpcClient(service),
      connect: createClient(InvestorService, createConnectTransport(http(service))),
      "grpc-web": createClient(InvestorService, createGrpcWebTransport(http(service))),
    };
    for (const [transport, client] of Object.entries(clients)) {
      await client.createInvestor(aCreate());
      await failureOf(client.createInvestor({}));
      await failureOf(client.getInvestor({ id: v7() }));
      await expect.poll(() => count(service, "CreateInvestor", "OK", transport)).toBe(1);
      await expect
        .poll(() => count(service, "CreateInvestor", "INVALID_ARGUMENT", transport))
        .toBe(1);
      await expect.poll(() => count(service, "GetInvestor", "NOT_FOUND", transport)).toBe(1);
    }
    await fetch(url(service, "/v1/investors"));
    await fetch(url(service, `/v1/investors/${v7()}`));
    await expect.poll(() => count(service, "ListInvestors", "OK", "rest")).toBe(1);
    await expect.poll(() => count(service, "GetInvestor", "NOT_FOUND", "rest")).toBe(1);
    expect(await metric(service, "store_batch_size_count", '{operation="insert"}')).toBe(3);
    expect(
      await metric(service, "store_operation_duration_seconds_count", '{operation="insert"}'),
    ).toBe(3);
    const operations = "store_operation_duration_seconds_count";
    expect(await metric(service, operations, '{operation="list"}')).toBe(1);
    expect(await metric(service, operations, '{operation="check"}')).toBeGreaterThan(0);
    expect(await metric(service, "process_resident_memory_bytes")).toBeGreaterThan(1e6);
  });

  it("count calls that fail before the service sees them, and those that nobody waits for", async () => {
    const service = await startService({ MAX_IN_FLIGHT: "1" });
    await grpcClient(service).createInvestor(aCreate());
    for (const type of ["json", "proto"]) {
      await fetch(url(service, "/investor.v1.InvestorService/GetInvestor"), {
        method: "POST",
        headers: { "content-type": `application/${type}` },
        body: "{",
      });
    }
    await expect.poll(() => count(service, "GetInvestor", "INVALID_ARGUMENT", "connect")).toBe(2);
    const release = lockDatabase(service);
    const controller = new AbortController();
    const left = grpcClient(service).createInvestor(aCreate(), { signal: controller.signal });
    await expect.poll(() => metric(service, "rpc_server_calls_in_flight")).toBe(1);
    await failureOf(grpcClient(service).listInvestors({}));
    controller.abort();
    await failureOf(left);
    release();
    await expect.poll(() => count(service, "CreateInvestor", "CANCELLED", "grpc")).toBe(1);
    await expect.poll(() => count(service, "ListInvestors", "UNAVAILABLE", "grpc")).toBe(1);
    expect(await metric(service, "rpc_server_calls_in_flight")).toBe(0);
  });
});

describe("the log", () => {
  it("has a line per call at debug, and failures alone at info", async () => {
    for (const level of ["debug", "info"]) {
      const service = await startService({ LOG_LEVEL: level });
      await grpcClient(service).listInvestors({});
      await fetch(url(service, "/v1/investors/none"), { headers: { traceparent } });
      await expect.poll(() => logged(service).length).toBe(level === "debug" ? 2 : 1);
      expect(logged(service).at(-1)).toMatchObject({
        level: 40,
        method: "investor.v1.InvestorService/GetInvestor",
        transport: "rest",
        code: "NOT_FOUND",
        reason: "INVESTOR_NOT_FOUND",
        durationMs: expect.any(Number),
        peer: expect.stringMatching(/^127\.0\.0\.1:\d+$/),
        traceId,
      });
    }
  });

  it("tells an internal error under the id that its caller gets", async () => {
    const service = await startService();
    await grpcClient(service).createInvestor(aCreate());
    breakDatabase(service);
    const failure = await failureOf(grpcClient(service).getInvestor({ id: v7() }));
    expect(failure).toMatchObject({ code: "Internal", reason: "INTERNAL" });
    expect(failure.message).not.toContain("investors");
    const answer = await fetch(url(service, `/v1/investors/${v7()}`), { headers: { traceparent } });
    expect(await answer.json()).toMatchObject({ status: 500, metadata: { id: traceId } });
    await expect.poll(() => logged(service).length).toBe(2);
    for (const id of [failure.metadata?.id, traceId]) {
      const lines = service
        .output()
        .split("\n")
        .filter((line) => line.includes(String(id)));
      expect(lines.map((line) => JSON.parse(line).msg)).toEqual(["internal error", "call failed"]);
      expect(lines[0]).toContain("no such table");
    }
  });
});

describe("traces", () => {
  it("come by the zero-code registration of OpenTelemetry, and carry on those of the caller", async () => {
    const spans = await startCollector();
    const service = await startService({
      NODE_OPTIONS: `--import ${import.meta.resolve("@opentelemetry/auto-instrumentations-node/register")}`,
      OTEL_EXPORTER_OTLP_ENDPOINT: spans.url,
      OTEL_EXPORTER_OTLP_PROTOCOL: "http/json",
      OTEL_METRICS_EXPORTER: "none",
      OTEL_LOGS_EXPORTER: "none",
      OTEL_NODE_RESOURCE_DETECTORS: "none",
      OTEL_BSP_SCHEDULE_DELAY: "100",
      LOG_LEVEL: "debug",
    });
    await grpcClient(service).listInvestors({}, { headers: { traceparent } });
    await grpcClient(service).listInvestors({});
    await fetch(url(service, "/v1/investors"), { headers: { traceparent } });
    await expect
      .poll(() => spans.received().filter((span) => span.traceId === traceId).length)
      .toBeGreaterThanOrEqual(2);
    await expect.poll(() => logged(service).length).toBe(3);
    const known = new Set(spans.received().map((span) => span.traceId));
    for (const { traceId } of logged(service)) expect(known).toContain(traceId);
  });
});

/** Starts what spans are sent to by OTLP. */
async function startCollector() {
  const spans: { traceId: string }[] = [];
  type Export = { resourceSpans?: { scopeSpans: { spans: typeof spans }[] }[] };
  const server = createServer(async (req, res) => {
    const { resourceSpans = [] } = JSON.parse(await text(req)) as Export;
    spans.push(...resourceSpans.flatMap(({ scopeSpans }) => scopeSpans.flatMap((s) => s.spans)));
    res.setHeader("content-type", "application/json").end("{}");
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    received: () => spans,
  };
}
