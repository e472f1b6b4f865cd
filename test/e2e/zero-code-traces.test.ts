import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { text } from "node:stream/consumers";
import { createClient } from "@connectrpc/connect";
import { createConnectTransport, createGrpcWebTransport } from "@connectrpc/connect-node";
import { SpanKind } from "@opentelemetry/api";
import { afterAll, beforeAll, expect, it, onTestFinished } from "vitest";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { describeWithMongo } from "../support/mongodb.ts";
import { aCreate } from "../support/records.ts";
import { grpcClient, runGroup, waitFor } from "../support/service.ts";
import { copySources } from "../support/sources.ts";

/** A span as the SDK exports it (OTLP in JSON, whose kinds begin at 1). */
interface Span {
  traceId: string;
  spanId: string;
  parentSpanId?: string;
  name: string;
  kind: number;
  attributes: { key: string; value: Record<string, unknown> }[];
}

const root = resolve(import.meta.dirname, "../..");
const [, commands = ""] =
  /```sh.*\n(npm install --prefix otel [^`]*)```/.exec(
    readFileSync(join(root, "docs/operation.md"), "utf8"),
  ) ?? [];
const [install = "", ...start] = commands.split("\n");
const spanId = "b7ad6b7169203331";
const isServer = ({ kind }: Span) => kind === SpanKind.SERVER + 1;
const isMongo = ({ attributes }: Span) =>
  attributes.some(({ key }) => key === "db.system" || key === "db.system.name");

function attribute({ attributes }: Span, name: string): unknown {
  const { value = {} } = attributes.find(({ key }) => key === name) ?? {};
  return Object.values(value)[0];
}

/** Takes what an SDK exports. */
async function startCollector() {
  const spans: Span[] = [];
  let received = "";
  const server = createServer(async (req, res) => {
    const body = await text(req);
    received += body;
    if (req.url === "/v1/traces") {
      for (const { scopeSpans } of JSON.parse(body).resourceSpans) {
        for (const scope of scopeSpans) spans.push(...scope.spans);
      }
    }
    res.setHeader("content-type", "application/json").end("{}");
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  return { url: `http://127.0.0.1:${port}`, spans, received: () => received };
}

await describeWithMongo("traces by the printed commands", "standalone", (mongo) => {
  let folder = "";
  let isInstalled = true;

  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), "investor-records-"));
    copySources(folder);
    try {
      execFileSync("sh", ["-c", install], {
        cwd: folder,
        env: {
          ...process.env,
          npm_config_ignore_scripts: "true",
          npm_config_prefer_offline: "true",
        },
        stdio: "ignore",
      });
    } catch (error) {
      if (process.env.CI) throw error;
      console.warn(`SKIPPED: traces by the printed commands: ${error}`);
      isInstalled = false;
    }
  }, 180_000);

  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  /** Runs commands that start the service, until the test is over. */
  async function startTraced(script: string, collector: string) {
    const { child, output } = runGroup("sh", ["-c", script], {
      cwd: folder,
      env: {
        ...process.env,
        GRPC_PORT: "0",
        HTTP_PORT: "0",
        LOG_LEVEL: "debug",
        DATABASE_URL: mongo.url(),
        OTEL_EXPORTER_OTLP_ENDPOINT: collector,
        OTEL_EXPORTER_OTLP_PROTOCOL: "http/json",
        OTEL_BSP_SCHEDULE_DELAY: "100",
        OTEL_LOG_LEVEL: "info",
      },
    });
    const [, grpcPort, httpPort] = await waitFor(async () => {
      if (child.exitCode !== null) throw new Error(`it ended: ${output()}`);
      return /grpc:\/\/[^ "]*:(\d+) and http:\/\/[^ "]*:(\d+)/.exec(output()) ?? undefined;
    });
    return { grpcPort: Number(grpcPort), httpPort: Number(httpPort), output };
  }

  /** Makes a create on each protocol, in a trace of its own. */
  async function callEach({ grpcPort, httpPort }: { grpcPort: number; httpPort: number }) {
    const http = { baseUrl: `http://127.0.0.1:${httpPort}`, httpVersion: "1.1" } as const;
    const traceIds = ["1", "2", "3", "4"].map((digit) => digit.repeat(32));
    const [grpc, connect, web, rest] = traceIds.map((traceId) => ({
      headers: { traceparent: `00-${traceId}-${spanId}-01` },
    }));
    await grpcClient({ grpcPort }).createInvestor(aCreate(), grpc);
    await createClient(InvestorService, createConnectTransport(http)).createInvestor(
      aCreate(),
      connect,
    );
    await createClient(InvestorService, createGrpcWebTransport(http)).createInvestor(
      aCreate(),
      web,
    );
    await fetch(`${http.baseUrl}/v1/investors?pageSize=1`, rest);
    return traceIds;
  }

  it("are one server span a call, above the operations of MongoDB", async (context) => {
    context.skip(!isInstalled);
    const collector = await startCollector();
    const service = await startTraced(start.join("\n"), collector.url);
    for (const traceId of await callEach(service)) {
      const own = () => collector.spans.filter((each) => each.traceId === traceId);
      await expect.poll(() => own().length).toBeGreaterThanOrEqual(2);
      const [server, ...more] = own().filter(isServer);
      expect(more).toEqual([]);
      expect(server).toMatchObject({
        parentSpanId: spanId,
        name: traceId.startsWith("4")
          ? "GET /v1/investors"
          : "investor.v1.InvestorService/CreateInvestor",
      });
      const [operation] = own().filter(isMongo);
      expect(operation?.parentSpanId).toBe(server?.spanId);
      expect(service.output()).toContain(`"traceId":"${traceId}"`);
    }
    expect(collector.received()).not.toMatch(/Ada|Lovelace|St James|Łódź/);
    // Neither npm nor the compiler loads the SDK, nor does a thread of the service.
    expect(service.output().match(/instrumentation started successfully/g)).toHaveLength(1);
  });

  it("are one server span a call too if HTTP is traced", async (context) => {
    context.skip(!isInstalled);
    const collector = await startCollector();
    const whole = start.join("\n").replace("OTEL_NODE_DISABLED_INSTRUMENTATIONS=http", "");
    const service = await startTraced(whole, collector.url);
    for (const traceId of await callEach(service)) {
      const own = () => collector.spans.filter((each) => each.traceId === traceId);
      const isGrpc = traceId.startsWith("1");
      await expect.poll(() => own().length).toBeGreaterThanOrEqual(isGrpc ? 2 : 3);
      const [server, ...more] = own().filter(isServer);
      expect(more).toEqual([]);
      expect(server?.parentSpanId).toBe(spanId);
      if (server === undefined || isGrpc) continue;
      const route = traceId.startsWith("4")
        ? "/v1/investors"
        : "/investor.v1.InvestorService/CreateInvestor";
      expect(server.name).toBe(`${traceId.startsWith("4") ? "GET" : "POST"} ${route}`);
      expect(attribute(server, "http.route")).toBe(route);
      const [call] = own().filter(({ parentSpanId }) => parentSpanId === server.spanId);
      expect(call?.kind).toBe(SpanKind.INTERNAL + 1);
    }
  });
});
