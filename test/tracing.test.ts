import { createServer, type RequestListener } from "node:http";
import { connect } from "node:http2";
import { buffer } from "node:stream/consumers";
import { setTimeout as delay } from "node:timers/promises";
import { propagation, SpanKind, SpanStatusCode, trace } from "@opentelemetry/api";
import { W3CTraceContextPropagator } from "@opentelemetry/core";
import {
  AlwaysOnSampler,
  BasicTracerProvider,
  InMemorySpanExporter,
  type ReadableSpan,
  SimpleSpanProcessor,
} from "@opentelemetry/sdk-trace-base";
import { v7 } from "uuid";
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from "vitest";
import { createAuthority, writeServerFlags } from "./support/certificates.ts";
import { clientsOf } from "./support/clients.ts";
import { failureOf } from "./support/errors.ts";
import { temporaryFolder } from "./support/folder.ts";
import { messages, openCall, paths, rawCall, rawConnection } from "./support/raw-grpc.ts";
import { aCreate } from "./support/records.ts";
import { startInProcess } from "./support/server.ts";
import {
  ask,
  end,
  hurry,
  preload,
  startService,
  storeWrong,
  untilInFlight,
  untilWritten,
} from "./support/service.ts";
import { listen } from "./support/tcp.ts";

const spanId = "b7ad6b7169203331";
const traceId = "0af7651916cd43dd8448eb211c80319c";
const headers = { traceparent: `00-${traceId}-${spanId}-01` };
const own = "investor.v1.InvestorService";

describe("with an SDK in its process, the service", () => {
  const exporter = new InMemorySpanExporter();
  const provider = new BasicTracerProvider({
    sampler: new AlwaysOnSampler(),
    spanProcessors: [new SimpleSpanProcessor(exporter)],
  });
  beforeAll(() => {
    trace.setGlobalTracerProvider(provider);
    propagation.setGlobalPropagator(new W3CTraceContextPropagator());
  });
  afterAll(async () => {
    await provider.shutdown();
    trace.disable();
    propagation.disable();
  });

  /** The one span that has ended since this was last called, of the server. */
  async function takeSpan(): Promise<ReadableSpan> {
    await expect.poll(() => exporter.getFinishedSpans()).toHaveLength(1);
    const [span] = exporter.getFinishedSpans() as [ReadableSpan];
    exporter.reset();
    expect(span.kind).toBe(SpanKind.SERVER);
    return span;
  }

  const parent = { traceId, spanId, isRemote: true };
  const peer = {
    "network.peer.address": "127.0.0.1",
    "network.peer.port": expect.any(Number),
  };
  const ofNoFault = { code: SpanStatusCode.UNSET };

  it.each(["gRPC", "Connect"] as const)(
    "makes of a call by %s one server span, which is an error if the service is at fault",
    async (protocol) => {
      const nameOf = (code: string) => (protocol === "gRPC" ? code : code.toLowerCase());
      const server = await startInProcess({ "--log-level": "debug" });
      const client = clientsOf(server)[protocol];
      await client.listInvestors({}, { headers });
      const listed = await takeSpan();
      expect(listed.name).toBe(`${own}/ListInvestors`);
      expect(listed.parentSpanContext).toMatchObject(parent);
      expect(listed.status).toEqual(ofNoFault);
      expect(listed.attributes).toEqual({
        "rpc.system.name": protocol === "gRPC" ? "grpc" : "connectrpc",
        "rpc.method": `${own}/ListInvestors`,
        ...(protocol === "gRPC" && { "rpc.status_code": "OK" }),
        ...peer,
      });

      await failureOf(client.getInvestor({ id: v7() }, { headers }));
      const refused = await takeSpan();
      expect(refused.attributes).toMatchObject({ "rpc.status_code": nameOf("NOT_FOUND") });
      expect(refused.attributes).not.toHaveProperty("error.type");
      expect(refused.status).toEqual(ofNoFault);

      const wrong = { id: storeWrong(server) };
      await failureOf(client.getInvestor(wrong, { headers }));
      const failed = await takeSpan();
      const code = nameOf("INTERNAL");
      expect(failed.attributes).toMatchObject({ "rpc.status_code": code, "error.type": code });
      expect(failed.status).toEqual({ code: SpanStatusCode.ERROR });
      expect(failed.events).toEqual([]);
      const traceIds = server.lines.map((line) => line.traceId).filter(Boolean);
      expect(new Set(traceIds)).toEqual(new Set([traceId]));
    },
  );

  it.each([
    ["HEAD", "/v1/investors?pageSize=1", "/v1/investors", "/v1/investors", 200],
    ["GET", "/v1/investors/Ada", "/v1/investors/{id}", "/v1/investors/REDACTED", 404],
  ])("makes of %s %s one server span of HTTP", async (method, path, route, shown, status) => {
    const server = await startInProcess();
    await ask(server, path, { method, headers });
    const span = await takeSpan();
    expect(span.name).toBe(`${method} ${route}`);
    expect(span.parentSpanContext).toMatchObject(parent);
    expect(span.status).toEqual(ofNoFault);
    expect(span.attributes).toEqual({
      "http.request.method": method,
      "http.route": route,
      "http.response.status_code": status,
      "url.path": shown,
      "url.scheme": "http",
      "network.protocol.version": "1.1",
      ...peer,
    });
  });

  it("tells TLS and HTTP/2 in a span of HTTP", async () => {
    const authority = await createAuthority();
    const server = await startInProcess(await writeServerFlags(temporaryFolder(), authority));
    const session = connect(`https://localhost:${server.port}`, { ca: authority.ca });
    onTestFinished(() => session.destroy());
    session.request({ ":path": "/v1/investors" }).resume();
    expect((await takeSpan()).attributes).toMatchObject({
      "url.scheme": "https",
      "network.protocol.version": "2",
    });
  });

  it("makes none of health checks and reflection", async () => {
    const server = await startInProcess();
    const session = rawConnection(server.port);
    await rawCall(session, paths.check, messages.empty);
    await rawCall(session, paths.reflect, messages.listServices);
    await rawCall(session, paths.list, messages.empty);
    expect((await takeSpan()).name).toBe(`${own}/ListInvestors`);
  });

  it("cancels the span of a call that nobody waits for any more", async () => {
    const server = await startInProcess();
    const session = rawConnection(server.port);
    openCall(session, `/${own}/CreateInvestor`);
    await untilInFlight(server, 1);
    session.destroy();
    const span = await takeSpan();
    expect(span.attributes["rpc.status_code"]).toBe("CANCELLED");
    expect(span.status).toEqual(ofNoFault);
  });
});

/** Takes what the service exports, as text with a character for each byte. */
async function startCollector(respond?: RequestListener) {
  const collected = { url: "", headers: "", text: "" };
  const server = createServer(async (req, res) => {
    if (respond) return respond(req, res);
    const body = await buffer(req);
    // Longer than a store takes to close at rest; a collector may drop what nobody waits for.
    await delay(300);
    if (res.destroyed) return;
    collected.headers = `${req.method} ${req.url} ${req.headers["x-key"]}`;
    collected.text += body.toString("latin1");
    res.end();
  });
  onTestFinished(() => server.closeAllConnections());
  collected.url = `http://127.0.0.1:${await listen(server)}`;
  return collected;
}

/** The reply of a collector that has refused one span: its `partial_success`. */
const rejectsOne = Buffer.from([0x0a, 2, 8, 1]);

/** A program that names each package of OpenTelemetry's on standard output as it is loaded. */
const tellPackages = `
  import { registerHooks } from "node:module";
  const load = (url, context, next) => {
    const [, name] = /@opentelemetry.([a-z-]+)/.exec(url) ?? [];
    if (name) console.log("loads " + name);
    return next(url, context);
  };
  registerHooks({ load });
`;

describe("by the variables of OpenTelemetry alone, the service", () => {
  it("exports a span of every kind of call, the last ones as it stops", async () => {
    const collected = await startCollector();
    const env = {
      OTEL_EXPORTER_OTLP_ENDPOINT: collected.url,
      OTEL_EXPORTER_OTLP_HEADERS: "x-key=k3y",
      OTEL_RESOURCE_ATTRIBUTES: "deployment.environment.name=trial",
      // Slower, so that the last ones have more than a second to leave.
      NODE_OPTIONS: hurry(0.1, ["setTimeout"]),
    };
    const service = await startService(env);
    const { gRPC, Connect } = clientsOf(service);
    for (const client of [gRPC, Connect]) await client.createInvestor(aCreate(), { headers });
    await failureOf(gRPC.getInvestor({ id: "none" }, { headers }));
    await (await ask(service, "/v1/investors", { headers })).text();
    expect(await end(service)).toBe(0);
    expect(collected.headers).toBe("POST /v1/traces k3y");
    // A span in protobuf: its trace, its own id, its parent, its name.
    const [trace = "", parent] = [traceId, spanId].map((id) =>
      Buffer.from(id, "hex").toString("latin1"),
    );
    const [resource, ...spans] = collected.text.split(trace);
    for (const text of ["investor-records", "trial"]) expect(resource).toContain(text);
    for (const span of spans) expect(span).toContain(parent);
    const names = spans.map((span) => /[A-Z]+ \/v1\/investors|\w+Investors?/.exec(span)?.[0]);
    const creates = ["CreateInvestor", "CreateInvestor"];
    expect(names.toSorted()).toEqual([...creates, "GET /v1/investors", "GetInvestor"]);
    expect(collected.text).not.toMatch(/Ada|Lovelace|St James/);
  });

  it.each<[string, RequestListener | string, RegExp]>([
    ["is down", "http://127.0.0.1:1", /ECONNREFUSED/],
    ["never replies", () => {}, /timed out/],
    ["is another server", (_, res) => void res.end("<html>S3CRET"), /deserialize response/],
    ["takes only some", (_, res) => void res.end(rejectsOne), /"?rejectedSpans\W+1\D/],
    ["has no usable URL", "collector:4318", /Protocol \W*collector:\W* not supported/],
  ])("has one line of log if the collector %s, and no call waits", async (_, respond, cause) => {
    const url = typeof respond === "string" ? respond : (await startCollector(respond)).url;
    const service = await startService({
      OTEL_EXPORTER_OTLP_ENDPOINT: url,
      OTEL_EXPORTER_OTLP_TIMEOUT: "1000",
      OTEL_BSP_SCHEDULE_DELAY: "50",
    });
    const client = clientsOf(service).gRPC;
    await client.listInvestors({});
    await untilWritten(service, "spans cannot be exported");
    for (let i = 0; i < 100; i += 1) await client.listInvestors({});
    expect(await end(service)).toBe(0);
    const told = service.output().match(/.*traces: .*/g);
    expect(told).toEqual([expect.stringMatching(cause)]);
    expect(told?.[0]).not.toContain("S3CRET");
  });

  it("exports again when its collector does, and says so", async () => {
    let isUp = false;
    const { url } = await startCollector((_, res) => void res.writeHead(isUp ? 200 : 401).end());
    const service = await startService({
      OTEL_EXPORTER_OTLP_ENDPOINT: url,
      OTEL_BSP_SCHEDULE_DELAY: "50",
      // A batch whose end is not heard of holds up the next one for as long.
      OTEL_BSP_EXPORT_TIMEOUT: "3600000",
    });
    const client = clientsOf(service).gRPC;
    await client.listInvestors({});
    await untilWritten(service, "spans cannot be exported");
    isUp = true;
    await client.listInvestors({});
    await untilWritten(service, "spans are exported again");
  });

  it.each<[NodeJS.ProcessEnv, exports: boolean, warning?: string]>([
    [{}, false],
    [{ OTEL_EXPORTER_OTLP_ENDPOINT: "http://127.0.0.1:1", OTEL_SDK_DISABLED: "true" }, false],
    [{ OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: "http://127.0.0.1:1" }, true],
    [{ OTEL_TRACES_EXPORTER: "none", OTEL_EXPORTER_OTLP_ENDPOINT: "http://127.0.0.1:1" }, false],
    [{ OTEL_TRACES_EXPORTER: "otlp" }, true],
    [{ OTEL_TRACES_EXPORTER: "console, otlp" }, true],
    [{ OTEL_TRACES_EXPORTER: "console" }, false],
    [{ OTEL_TRACES_EXPORTER: "otlp", OTEL_TRACES_SAMPLER: "some" }, true, "OTEL_TRACES_SAMPLER"],
  ])(
    "exports spans, or does not and loads nothing that it takes: %j",
    async (env, areExported, warning) => {
      const service = await startService({ ...env, NODE_OPTIONS: preload(tellPackages) });
      const loaded = service.output().match(/^loads .*$/gm);
      if (areExported) expect(loaded).toContain("loads sdk-trace");
      else expect(new Set(loaded)).toEqual(new Set(["loads api"]));
      const warnings = service.output().match(/^{"level":40(?!.*new file).*$/gm) ?? [];
      expect(warnings).toEqual(warning ? [expect.stringContaining(warning)] : []);
    },
  );
});
