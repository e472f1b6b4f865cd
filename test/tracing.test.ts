import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { connect } from "node:http2";
import { join, resolve } from "node:path";
import { text } from "node:stream/consumers";
import { propagation, SpanKind, SpanStatusCode, trace } from "@opentelemetry/api";
import {
  AlwaysOnSampler,
  InMemorySpanExporter,
  NodeTracerProvider,
  type ReadableSpan,
  SimpleSpanProcessor,
} from "@opentelemetry/sdk-trace-node";
import { v7 } from "uuid";
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from "vitest";
import { createAuthority, writeServerFiles } from "./support/certificates.ts";
import { clientsOf } from "./support/clients.ts";
import { copyClone } from "./support/clone.ts";
import { failureOf } from "./support/errors.ts";
import { temporaryFolder } from "./support/folder.ts";
import { describeWithMongo } from "./support/mongodb.ts";
import { openCall, rawConnection } from "./support/raw-grpc.ts";
import { aCreate } from "./support/records.ts";
import { startInProcess } from "./support/server.ts";
import { breakDatabase, runGroup, untilInFlight, waitFor } from "./support/service.ts";
import { listen } from "./support/tcp.ts";

const spanId = "b7ad6b7169203331";
const traceId = "0af7651916cd43dd8448eb211c80319c";
const headers = { traceparent: `00-${traceId}-${spanId}-01` };
const own = "investor.v1.InvestorService";

describe("with an SDK in its process, the service", () => {
  const exporter = new InMemorySpanExporter();
  const provider = new NodeTracerProvider({
    sampler: new AlwaysOnSampler(),
    spanProcessors: [new SimpleSpanProcessor(exporter)],
  });
  beforeAll(() => provider.register());
  afterAll(async () => {
    await provider.shutdown();
    trace.disable();
    propagation.disable();
  });

  /** The one span that has ended since this was last called. */
  async function takeSpan(): Promise<ReadableSpan> {
    await expect.poll(() => exporter.getFinishedSpans()).toHaveLength(1);
    const [span] = exporter.getFinishedSpans();
    exporter.reset();
    return span as ReadableSpan;
  }

  it.each(["gRPC", "Connect"] as const)(
    "makes of a call by %s one server span, which is an error if the service is at fault",
    async (protocol) => {
      const nameOf = (code: string) => (protocol === "gRPC" ? code : code.toLowerCase());
      const server = await startInProcess({ "--log-level": "debug" });
      const client = clientsOf(server)[protocol];
      await client.listInvestors({}, { headers });
      const span = await takeSpan();
      expect(span.name).toBe(`${own}/ListInvestors`);
      expect(span.kind).toBe(SpanKind.SERVER);
      expect(span.parentSpanContext).toMatchObject({ traceId, spanId, isRemote: true });
      expect(span.status.code).toBe(SpanStatusCode.UNSET);
      expect(span.attributes).toEqual({
        "rpc.system.name": protocol === "gRPC" ? "grpc" : "connectrpc",
        "rpc.method": `${own}/ListInvestors`,
        ...(protocol === "gRPC" && { "rpc.status_code": "OK" }),
        "server.address": "127.0.0.1",
        "server.port": protocol === "gRPC" ? server.grpcPort : server.httpPort,
        "network.peer.address": "127.0.0.1",
        "network.peer.port": expect.any(Number),
      });

      await failureOf(client.getInvestor({ id: v7() }, { headers }));
      const refused = await takeSpan();
      expect(refused.attributes).toMatchObject({ "rpc.status_code": nameOf("NOT_FOUND") });
      expect(refused.attributes).not.toHaveProperty("error.type");
      expect(refused.status.code).toBe(SpanStatusCode.UNSET);

      breakDatabase(server);
      await failureOf(client.getInvestor({ id: v7() }, { headers }));
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
    await fetch(`http://127.0.0.1:${server.httpPort}${path}`, { method, headers });
    const span = await takeSpan();
    expect(span.name).toBe(`${method} ${route}`);
    expect(span.kind).toBe(SpanKind.SERVER);
    expect(span.parentSpanContext).toMatchObject({ traceId, spanId });
    expect(span.status.code).toBe(SpanStatusCode.UNSET);
    expect(span.attributes).toEqual({
      "http.request.method": method,
      "http.route": route,
      "http.response.status_code": status,
      "url.path": shown,
      "url.scheme": "http",
      "network.protocol.version": "1.1",
      "server.address": "127.0.0.1",
      "server.port": server.httpPort,
      "network.peer.address": "127.0.0.1",
      "network.peer.port": expect.any(Number),
    });
  });

  it("tells TLS and HTTP/2 in a span of HTTP", async () => {
    const authority = await createAuthority();
    const { TLS_CERT, TLS_KEY } = await writeServerFiles(temporaryFolder(), authority);
    const server = await startInProcess({ "--tls-cert": TLS_CERT, "--tls-key": TLS_KEY });
    const session = connect(`https://localhost:${server.httpPort}`, { ca: authority.ca });
    onTestFinished(() => session.destroy());
    session.request({ ":path": "/v1/investors" }).resume();
    expect((await takeSpan()).attributes).toMatchObject({
      "url.scheme": "https",
      "network.protocol.version": "2",
      "server.address": "localhost",
    });
  });

  it("cancels the span of a call that nobody waits for any more", async () => {
    const server = await startInProcess();
    const session = rawConnection(server.grpcPort);
    openCall(session, `/${own}/CreateInvestor`);
    await untilInFlight(server, 1);
    session.destroy();
    const span = await takeSpan();
    expect(span.attributes["rpc.status_code"]).toBe("CANCELLED");
    expect(span.status.code).toBe(SpanStatusCode.UNSET);
  });
});

/** A span as an SDK exports it (OTLP in JSON, whose kinds begin at 1). */
interface ExportedSpan {
  traceId: string;
  spanId: string;
  parentSpanId?: string;
  name: string;
  kind: number;
  attributes: { key: string; value: { stringValue?: string } }[];
}

/** Takes what an SDK exports. */
async function startCollector() {
  const collected = { url: "", text: "", spans: [] as ExportedSpan[] };
  const server = createServer(async (req, res) => {
    const body = await text(req);
    collected.text += body;
    for (const { scopeSpans } of JSON.parse(body).resourceSpans ?? []) {
      for (const { spans } of scopeSpans) collected.spans.push(...spans);
    }
    res.setHeader("content-type", "application/json").end("{}");
  });
  onTestFinished(() => server.closeAllConnections());
  collected.url = `http://127.0.0.1:${await listen(server)}`;
  return collected;
}

const page = readFileSync(resolve(import.meta.dirname, "../docs/operation.md"), "utf8");
const [, commands = ""] = /```sh.*\n(npm install --prefix otel [^`]*)```/.exec(page) ?? [];
const [install = "", ...start] = commands.split("\n");

await describeWithMongo("the printed commands", "standalone", (mongo) => {
  it("trace each call as one server span above the operations of MongoDB, also where HTTP is traced", async ({
    skip,
  }) => {
    const folder = join(temporaryFolder(), "clone");
    copyClone(folder);
    const env = { ...process.env, npm_config_prefer_offline: "true" };
    try {
      execFileSync("sh", ["-c", install], { cwd: folder, env, stdio: "ignore" });
    } catch (error) {
      if (process.env.CI) throw error;
      skip(`the packages of OpenTelemetry cannot be installed: ${error}`);
    }
    for (const isHttpTraced of [false, true]) {
      const collected = await startCollector();
      const script = start.join("\n");
      const disabled = "OTEL_NODE_DISABLED_INSTRUMENTATIONS=http";
      expect(script).toContain(disabled);
      const program = isHttpTraced ? script.replace(disabled, "") : script;
      const { child, output } = runGroup("sh", ["-c", program], {
        cwd: folder,
        env: {
          ...env,
          GRPC_PORT: "0",
          HTTP_PORT: "0",
          DATABASE_URL: mongo.url(),
          OTEL_EXPORTER_OTLP_ENDPOINT: collected.url,
          OTEL_EXPORTER_OTLP_PROTOCOL: "http/json",
          OTEL_BSP_SCHEDULE_DELAY: "100",
          OTEL_LOG_LEVEL: "info",
        },
      });
      const [, grpcPort, httpPort] = await waitFor(async () => {
        if (child.exitCode !== null) throw new Error(`it ended: ${output()}`);
        return /grpc:\/\/[^ "]*:(\d+) and http:\/\/[^ "]*:(\d+)/.exec(output()) ?? undefined;
      });
      const ports = { grpcPort: Number(grpcPort), httpPort: Number(httpPort) };
      for (const [protocol, client] of Object.entries(clientsOf(ports))) {
        const traceId = v7().replaceAll("-", "");
        const traced = { headers: { traceparent: `00-${traceId}-${spanId}-01` } };
        const { id } = await client.createInvestor(aCreate());
        await client.getInvestor({ id }, traced);
        const spans = () => collected.spans.filter((each) => each.traceId === traceId);
        const ofMongo = () =>
          spans().find(({ attributes }) => attributes.some(({ key }) => key.startsWith("db.")));
        const servers = () => spans().filter(({ kind }) => kind === SpanKind.SERVER + 1);
        await expect.poll(() => [servers().length, ofMongo() !== undefined]).toEqual([1, true]);
        const [server] = servers();
        expect(server?.parentSpanId).toBe(spanId);
        // Only HTTP/1.1 is traced so; its span is then the server's, and that of the call below it.
        const isBelow = isHttpTraced && protocol !== "gRPC";
        const call = spans().find(({ name }) => name === `${own}/GetInvestor`);
        expect(call?.kind).toBe((isBelow ? SpanKind.INTERNAL : SpanKind.SERVER) + 1);
        expect(call?.parentSpanId).toBe(isBelow ? server?.spanId : spanId);
        expect(ofMongo()?.parentSpanId).toBe(call?.spanId);
        if (isBelow) expect(server?.name).toMatch(`/${own}/GetInvestor`);
      }
      expect(collected.text).not.toMatch(/Ada|Lovelace|St James|Łódź/);
      // Neither npm nor the compiler loads the SDK, nor does a thread of the service.
      expect(output().match(/instrumentation started successfully/g)).toHaveLength(1);
    }
  });
});
