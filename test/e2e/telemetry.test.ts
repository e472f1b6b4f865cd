import { createHash, X509Certificate } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { createClient } from "@connectrpc/connect";
import { createConnectTransport, createGrpcWebTransport } from "@connectrpc/connect-node";
import { v7 } from "uuid";
import { describe, expect, it } from "vitest";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { createAuthority, getOverTls, writeServerFiles } from "../support/certificates.ts";
import { failureOf } from "../support/errors.ts";
import { temporaryFolder } from "../support/folder.ts";
import { promptly } from "../support/gate.ts";
import { frame, rawCall, rawConnection } from "../support/raw-grpc.ts";
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
    "investor_records_rpc_server_call_duration_seconds_count",
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
    expect(
      await metric(service, "investor_records_store_batch_size_count", '{operation="insert"}'),
    ).toBe(3);
    expect(
      await metric(
        service,
        "investor_records_store_operation_duration_seconds_count",
        '{operation="insert"}',
      ),
    ).toBe(3);
    const operations = "investor_records_store_operation_duration_seconds_count";
    expect(await metric(service, operations, '{operation="list"}')).toBe(1);
    expect(await metric(service, operations, '{operation="check"}')).toBeGreaterThan(0);
    expect(await metric(service, "process_resident_memory_bytes")).toBeGreaterThan(1e6);
  });

  it("tell what is running", async () => {
    const { version } = JSON.parse(readFileSync("package.json", "utf8"));
    const labels = `{version="${version}",revision="",node="${process.versions.node}"}`;
    expect(await metric(await startService(), "investor_records_build_info", labels)).toBe(1);
  });

  it("tell whether it is ready", async () => {
    const service = await startService({ DRAIN_DELAY: "10s" });
    const ready = () => metric(service, "investor_records_ready");
    expect(await ready()).toBe(1);
    service.child.kill("SIGTERM");
    await expect.poll(ready, promptly).toBe(0);
  });

  it("tell when the certificate expires, also after it is replaced", async () => {
    const folder = temporaryFolder();
    const authority = await createAuthority();
    const files = await writeServerFiles(folder, authority);
    const service = await startService(files, folder);
    const shown = async () => {
      const metrics = await getOverTls(service, "/metrics", { ca: authority.ca });
      const name = "investor_records_tls_certificate_expiry_timestamp_seconds";
      return Number(new RegExp(`^${name} (\\S+)$`, "m").exec(metrics)?.[1]);
    };
    const expiry = (cert: string) => new X509Certificate(cert).validToDate.getTime() / 1_000;
    expect(await shown()).toBe(expiry(readFileSync(files.TLS_CERT, "utf8")));
    const { cert, key } = await authority.sign("server", 30);
    writeFileSync(files.TLS_CERT, cert);
    writeFileSync(files.TLS_KEY, key);
    service.child.kill("SIGHUP");
    await expect.poll(shown).toBe(expiry(cert));
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
    await expect.poll(() => metric(service, "investor_records_rpc_server_calls_in_flight")).toBe(1);
    await failureOf(grpcClient(service).listInvestors({}));
    controller.abort();
    await failureOf(left);
    // Or else it may be stored before the service learns that it is not waited for.
    await expect.poll(() => count(service, "CreateInvestor", "CANCELLED", "grpc")).toBe(1);
    release();
    await expect.poll(() => count(service, "ListInvestors", "UNAVAILABLE", "grpc")).toBe(1);
    expect(await metric(service, "investor_records_rpc_server_calls_in_flight")).toBe(0);
  });
});

describe("a client's mistake", () => {
  it("is INTERNAL neither in the metrics nor in the log, whichever it is", async () => {
    const service = await startService({ LOG_LEVEL: "debug" });
    const post = (path: string, headers: Record<string, string>, body: string | Uint8Array) =>
      fetch(url(service, path), { method: "POST", headers, body: Buffer.from(body) });
    const rpc = "/investor.v1.InvestorService/CreateInvestor";
    const json = { "content-type": "application/json" };
    const garbage = Uint8Array.of(0, 0, 0, 0, 3, 255, 255, 255);
    await post("/v1/investors", { "content-type": "text/plain" }, "x");
    await post("/v1/investors", { ...json, "content-encoding": "gzip" }, "x");
    await post("/v1/investors", json, "x".repeat(70_000));
    await post("/v1/investors?x=1", json, "{");
    await post(rpc, json, "x".repeat(70_000));
    await post(rpc, { ...json, "content-encoding": "gzip" }, "no gzip");
    await post(rpc, { ...json, "content-encoding": "zip" }, "{}");
    await post(rpc, { ...json, "connect-timeout-ms": "soon" }, "{}");
    await post(rpc, { "content-type": "application/proto" }, garbage);
    await post(rpc, { "content-type": "application/grpc-web" }, garbage);
    await post(rpc, { "content-type": "application/grpc-web" }, garbage.slice(0, 6));
    await post(rpc, { "content-type": "application/connect+json" }, garbage);
    const session = rawConnection(service.grpcPort);
    const compressed = Uint8Array.of(1, ...garbage.slice(1));
    await rawCall(session, rpc, garbage);
    await rawCall(session, rpc, garbage.slice(0, 6));
    await rawCall(session, rpc, compressed);
    await rawCall(session, rpc, compressed, { "grpc-encoding": "gzip" });
    await rawCall(session, rpc, compressed, { "grpc-encoding": "zip" });
    await rawCall(session, rpc, frame(new Uint8Array()), { "grpc-timeout": "soon" });
    await rawCall(session, rpc, frame(new Uint8Array(70_000)));
    await rawCall(session, rpc, Buffer.concat([frame(new Uint8Array()), frame(new Uint8Array())]));
    await expect
      .poll(() => metric(service, "investor_records_rpc_server_calls_in_flight"), promptly)
      .toBe(0);
    const metrics = await (await fetch(url(service, "/metrics"))).text();
    expect(metrics).toContain('code="INVALID_ARGUMENT",transport="rest"');
    expect(metrics).toContain('code="RESOURCE_EXHAUSTED",transport="rest"');
    expect(metrics).not.toMatch(/code="(INTERNAL|UNKNOWN)"/);
    expect(service.output()).not.toMatch(/INTERNAL|"level":(50|60)/);
  });
});

describe("the log", () => {
  it("has a line at debug for a call and for a mistake of its client, and none at info", async () => {
    for (const level of ["debug", "info"]) {
      const service = await startService({ LOG_LEVEL: level });
      const { id } = await grpcClient(service).createInvestor(aCreate());
      await fetch(url(service, "/v1/investors/none"), { headers: { traceparent } });
      await failureOf(grpcClient(service).createInvestor({}));
      const release = lockDatabase(service);
      await failureOf(grpcClient(service).createInvestor(aCreate(), { timeoutMs: 50 }));
      release();
      const late = (code: string) => count(service, "CreateInvestor", code, "grpc");
      // Its client may reset the call before the deadline ends it.
      const ended = async () => (await late("DEADLINE_EXCEEDED")) + (await late("CANCELLED"));
      await expect.poll(ended).toBe(1);
      if (level === "info") {
        expect(await count(service, "CreateInvestor", "OK", "grpc")).toBe(1);
        expect(logged(service)).toEqual([]);
        continue;
      }
      await expect.poll(() => logged(service).length).toBeGreaterThanOrEqual(3);
      const [created, missing, invalid] = logged(service);
      expect(created).toMatchObject({ level: 20, code: "OK", created: id, msg: "call" });
      expect(missing).toMatchObject({
        level: 20,
        method: "investor.v1.InvestorService/GetInvestor",
        transport: "rest",
        code: "NOT_FOUND",
        reason: "INVESTOR_NOT_FOUND",
        durationMs: expect.any(Number),
        peer: expect.stringMatching(/^127\.0\.0\.1:\d+$/),
        traceId,
      });
      expect(invalid).toMatchObject({ level: 20, reason: "INVALID_FIELDS" });
      for (const each of [created, missing, invalid]) expect(each).not.toHaveProperty("principal");
    }
  });

  it("warns of a store that fails, in a line for each call", async () => {
    const service = await startService({ REQUEST_TIMEOUT: "200ms" });
    const release = lockDatabase(service);
    for (let i = 0; i < 20; i += 1) await failureOf(grpcClient(service).createInvestor(aCreate()));
    release();
    await expect.poll(() => logged(service).length).toBe(20);
    for (const line of logged(service)) {
      expect(line).toMatchObject({ level: 40, code: "DEADLINE_EXCEEDED", msg: "call failed" });
    }
  });

  it("names the caller, and by a hash who has a token without a name", async () => {
    const folder = temporaryFolder();
    const lone = "t0ken-without-a-name";
    writeFileSync(join(folder, "tokens"), `orders t0ken-of-the-orders\n${lone}\n`);
    const settings = { AUTH_TOKENS_FILE: "tokens", LOG_LEVEL: "debug" };
    const service = await startService(settings, folder);
    for (const token of ["t0ken-of-the-orders", lone]) {
      const headers = { authorization: `Bearer ${token}` };
      await grpcClient(service).createInvestor(aCreate(), { headers });
      await failureOf(grpcClient(service).createInvestor({}, { headers }));
    }
    await expect.poll(() => logged(service).length).toBe(4);
    const digest = createHash("sha256").update(lone).digest("hex");
    expect(logged(service).map(({ principal }) => principal)).toEqual([
      "token orders",
      "token orders",
      `token ${digest.slice(0, 8)}`,
      `token ${digest.slice(0, 8)}`,
    ]);
    expect(service.output()).not.toContain(lone);
  });

  it("warns of ten refused strangers a second, and counts the others", async () => {
    const folder = temporaryFolder();
    writeFileSync(join(folder, "tokens"), "reader t0ken-of-a-reader investors:read\n", {
      mode: 0o600,
    });
    const service = await startService({ AUTH_TOKENS_FILE: "tokens" }, folder);
    const strangers = [
      {},
      { authorization: "Bearer t0ken-of-a-stranger" },
      { authorization: "Bearer t0ken-of-a-reader" },
    ];
    const clients = strangers.map((headers) => [grpcClient(service), headers] as const);
    const metrics = async () => {
      expect((await fetch(url(service, "/metrics"))).status).toBe(401);
    };
    for (let i = 0; i < 50; i += 1) {
      await Promise.all([
        ...clients.map(([client, headers]) =>
          failureOf(client.createInvestor(aCreate(), { headers })),
        ),
        metrics(),
      ]);
    }
    const lines = () =>
      service
        .output()
        .split("\n")
        .filter((line) => line.includes("refused"))
        .map((line) => JSON.parse(line));
    const told = () => lines().reduce((sum, { count = 1 }) => sum + count, 0);
    await expect.poll(told).toBe(200);
    const single = lines().filter(({ count }) => count === undefined);
    const seconds = Math.ceil((lines().at(-1).time - lines()[0].time) / 1_000);
    expect(single.length).toBeLessThanOrEqual(10 * (seconds + 1));
    expect(new Set(lines().map(({ level }) => level))).toEqual(new Set([40]));
    expect(new Set(single.map(({ reason }) => reason))).toEqual(
      new Set(["CREDENTIALS_MISSING", "CREDENTIALS_INVALID", "SCOPE_MISSING"]),
    );
    for (const { reason, principal } of single) {
      expect(principal).toBe(reason === "SCOPE_MISSING" ? "token reader" : undefined);
    }
  });

  it("warns of pages of other origins that were refused", async () => {
    const service = await startService();
    for (let i = 0; i < 50; i += 1) {
      await fetch(url(service, "/v1/investors"), { headers: { origin: "https://evil.example" } });
    }
    await expect.poll(() => service.output()).toContain('"count":');
    const lines = service.output().match(/.*"origin":"https:\/\/evil.example".*/g) ?? [];
    expect(lines.length).toBeLessThanOrEqual(20);
    expect(JSON.parse(lines[0] ?? "")).toMatchObject({
      level: 40,
      msg: "refused",
      reason: "CROSS_ORIGIN",
    });
  });

  it("has nothing of an invalid Origin", async () => {
    const service = await startService();
    const headers = { origin: '{"lastName":"Lovelace"}' };
    expect((await fetch(url(service, "/v1/investors"), { headers })).status).toBe(403);
    await expect.poll(() => service.output()).toContain('"msg":"refused"');
    expect(service.output()).not.toContain("Lovelace");
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
