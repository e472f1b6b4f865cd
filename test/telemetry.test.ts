import { createHash, X509Certificate } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { createClient } from "@connectrpc/connect";
import { createConnectTransport, createGrpcWebTransport } from "@connectrpc/connect-node";
import { v7 } from "uuid";
import { expect, it } from "vitest";
import { InvestorService } from "../gen/investor/v1/investor_pb.js";
import { createAuthority, getOverTls, writeServerFiles } from "./support/certificates.ts";
import { failureOf } from "./support/errors.ts";
import { temporaryFolder } from "./support/folder.ts";
import { frame, rawCall, rawConnection } from "./support/raw-grpc.ts";
import { aCreate } from "./support/records.ts";
import {
  breakDatabase,
  grpcClient,
  lockDatabase,
  metric,
  type Service,
  startService,
  untilInFlight,
} from "./support/service.ts";

const url = ({ httpPort }: Service, path = "") => `http://127.0.0.1:${httpPort}${path}`;
const traceId = "0af7651916cd43dd8448eb211c80319c";
const traceparent = `00-${traceId}-b7ad6b7169203331-01`;

/** How many calls of a method ended with a code. */
const count = (service: Service, method: string, code: string, transport: string) =>
  metric(
    service,
    "investor_records_rpc_server_call_duration_seconds_count",
    `{method="investor.v1.InvestorService/${method}",code="${code}",transport="${transport}"}`,
  );

/** The lines of the log with a text. */
const linesWith = (service: Service, text: string): Record<string, unknown>[] =>
  service
    .output()
    .split("\n")
    .filter((line) => line.startsWith("{") && line.includes(text))
    .map((line) => JSON.parse(line));

const calls = (service: Service) => linesWith(service, '"method":');

/** Starts a service whose callers need a token of a file. */
async function startWithTokens(tokens: string, env = {}) {
  const folder = temporaryFolder();
  writeFileSync(join(folder, "tokens"), tokens, { mode: 0o600 });
  return startService({ AUTH_TOKENS_FILE: "tokens", ...env }, folder);
}

it("metrics count every call by method, code and transport, and the work of the store", async () => {
  const service = await startService();
  const http = { baseUrl: url(service), httpVersion: "1.1" as const };
  const clients = {
    grpc: grpcClient(service),
    connect: createClient(InvestorService, createConnectTransport(http)),
    "grpc-web": createClient(InvestorService, createGrpcWebTransport(http)),
  };
  for (const [transport, client] of Object.entries(clients)) {
    await client.createInvestor(aCreate());
    await failureOf(client.createInvestor({}));
    const counts = () =>
      Promise.all(
        ["OK", "INVALID_ARGUMENT"].map((code) => count(service, "CreateInvestor", code, transport)),
      );
    await expect.poll(counts).toEqual([1, 1]);
  }
  await fetch(url(service, "/v1/investors"));
  await fetch(url(service, `/v1/investors/${v7()}`));
  await expect.poll(() => count(service, "ListInvestors", "OK", "rest")).toBe(1);
  await expect.poll(() => count(service, "GetInvestor", "NOT_FOUND", "rest")).toBe(1);
  const operations = (operation: string) =>
    metric(
      service,
      "investor_records_store_operation_duration_seconds_count",
      `{operation="${operation}"}`,
    );
  expect([await operations("insert"), await operations("list")]).toEqual([3, 1]);
  expect(await operations("check")).toBeGreaterThan(0);
  const batches = "investor_records_store_batch_size_count";
  expect(await metric(service, batches, '{operation="insert"}')).toBe(3);
  expect(await metric(service, "process_resident_memory_bytes")).toBeGreaterThan(1e6);
});

it("metrics tell the version, and whether the service is ready", async () => {
  const service = await startService({ DRAIN_DELAY: "10s" });
  const { version } = JSON.parse(readFileSync("package.json", "utf8"));
  const labels = `{version="${version}",revision="",node="${process.versions.node}"}`;
  expect(await metric(service, "investor_records_build_info", labels)).toBe(1);
  const ready = () => metric(service, "investor_records_ready");
  expect(await ready()).toBe(1);
  service.child.kill("SIGTERM");
  await expect.poll(ready, { timeout: 4_000 }).toBe(0);
});

it("metrics tell when the certificate expires, also after it is replaced", async () => {
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

it("metrics count calls that are refused, and those that nobody waits for", async () => {
  const service = await startService({ MAX_IN_FLIGHT: "1" });
  await grpcClient(service).createInvestor(aCreate());
  const release = lockDatabase(service);
  const controller = new AbortController();
  const left = grpcClient(service).createInvestor(aCreate(), { signal: controller.signal });
  await untilInFlight(service, 1);
  await failureOf(grpcClient(service).listInvestors({}));
  controller.abort();
  await failureOf(left);
  // Or else it may be stored before the service learns that it is not waited for.
  await expect.poll(() => count(service, "CreateInvestor", "CANCELLED", "grpc")).toBe(1);
  release();
  await expect.poll(() => count(service, "ListInvestors", "UNAVAILABLE", "grpc")).toBe(1);
  await untilInFlight(service, 0);
});

it("no mistake of a client is INTERNAL in the metrics or an error in the log", async () => {
  const service = await startService({ LOG_LEVEL: "debug" });
  const rpc = "/investor.v1.InvestorService/CreateInvestor";
  const json = { "content-type": "application/json" };
  const garbage = Uint8Array.of(0, 0, 0, 0, 3, 255, 255, 255);
  const large = "x".repeat(70_000);
  const mistakes: [path: string, headers: Record<string, string>, body: string | Uint8Array][] = [
    ["/v1/investors", { "content-type": "text/plain" }, "x"],
    ["/v1/investors", { ...json, "content-encoding": "gzip" }, "x"],
    ["/v1/investors", json, large],
    ["/v1/investors?x=1", json, "{"],
    [rpc, json, large],
    [rpc, json, "{"],
    [rpc, { ...json, "content-encoding": "gzip" }, "no gzip"],
    [rpc, { ...json, "connect-timeout-ms": "soon" }, "{}"],
    [rpc, { "content-type": "application/proto" }, garbage],
    [rpc, { "content-type": "application/grpc-web" }, garbage.slice(0, 6)],
    [rpc, { "content-type": "application/connect+json" }, garbage],
  ];
  for (const [path, headers, body] of mistakes)
    await fetch(url(service, path), { method: "POST", headers, body: Buffer.from(body) });
  const session = rawConnection(service.grpcPort);
  const compressed = Uint8Array.of(1, ...garbage.slice(1));
  await rawCall(session, rpc, garbage);
  await rawCall(session, rpc, garbage.slice(0, 6));
  await rawCall(session, rpc, compressed, { "grpc-encoding": "gzip" });
  await rawCall(session, rpc, compressed, { "grpc-encoding": "zip" });
  await rawCall(session, rpc, frame(new Uint8Array()), { "grpc-timeout": "soon" });
  await rawCall(session, rpc, frame(new Uint8Array(70_000)));
  await rawCall(session, rpc, Buffer.concat([frame(new Uint8Array()), frame(new Uint8Array())]));
  await untilInFlight(service, 0);
  const metrics = await (await fetch(url(service, "/metrics"))).text();
  expect(metrics).toContain('code="INVALID_ARGUMENT",transport="rest"');
  expect(metrics).toContain('code="RESOURCE_EXHAUSTED",transport="rest"');
  expect(metrics).not.toMatch(/code="(INTERNAL|UNKNOWN)"/);
  expect(service.output()).not.toMatch(/INTERNAL|"level":(50|60)/);
});

it.each(["debug", "info"])(
  "the log has a line at debug for each call, and none at info: %s",
  async (level) => {
    const service = await startService({ LOG_LEVEL: level });
    const { id } = await grpcClient(service).createInvestor(aCreate());
    await fetch(url(service, "/v1/investors/none"), { headers: { traceparent } });
    await failureOf(grpcClient(service).createInvestor({}));
    const invalid = () => count(service, "CreateInvestor", "INVALID_ARGUMENT", "grpc");
    await expect.poll(invalid).toBe(1);
    if (level === "info") {
      expect(calls(service)).toEqual([]);
      return;
    }
    await expect.poll(() => calls(service)).toHaveLength(3);
    expect(calls(service)).toMatchObject([
      { level: 20, code: "OK", created: id, msg: "call" },
      {
        level: 20,
        method: "investor.v1.InvestorService/GetInvestor",
        transport: "rest",
        code: "NOT_FOUND",
        reason: "INVESTOR_NOT_FOUND",
        durationMs: expect.any(Number),
        peer: expect.stringMatching(/^127\.0\.0\.1:\d+$/),
        traceId,
      },
      { level: 20, reason: "INVALID_FIELDS" },
    ]);
    for (const line of calls(service)) expect(line).not.toHaveProperty("principal");
  },
);

it("the log warns of each call that the store fails", async () => {
  const service = await startService({ REQUEST_TIMEOUT: "200ms" });
  const release = lockDatabase(service);
  for (let i = 0; i < 3; i += 1) await failureOf(grpcClient(service).createInvestor(aCreate()));
  release();
  await expect.poll(() => calls(service)).toHaveLength(3);
  for (const line of calls(service))
    expect(line).toMatchObject({ level: 40, code: "DEADLINE_EXCEEDED", msg: "call failed" });
});

it("the log names the caller, and by a hash who has a token without a name", async () => {
  const lone = "t0ken-without-a-name";
  const service = await startWithTokens(`orders t0ken-of-the-orders\n${lone}\n`, {
    LOG_LEVEL: "debug",
  });
  for (const token of ["t0ken-of-the-orders", lone])
    await grpcClient(service).createInvestor(aCreate(), {
      headers: { authorization: `Bearer ${token}` },
    });
  await expect.poll(() => calls(service)).toHaveLength(2);
  const digest = createHash("sha256").update(lone).digest("hex").slice(0, 8);
  expect(calls(service).map(({ principal }) => principal)).toEqual([
    "token orders",
    `token ${digest}`,
  ]);
});

it("the log warns of ten refused strangers a second, and counts the others", async () => {
  const service = await startWithTokens("reader t0ken-of-a-reader investors:read\n");
  const strangers = [
    {},
    { authorization: "Bearer t0ken-of-a-stranger" },
    { authorization: "Bearer t0ken-of-a-reader" },
  ];
  const client = grpcClient(service);
  const refuse = (headers: Record<string, string>) =>
    failureOf(client.createInvestor(aCreate(), { headers }));
  for (let i = 0; i < 50; i += 1) await Promise.all(strangers.map(refuse));
  const lines = () => linesWith(service, "refused");
  const told = () => lines().reduce((sum, { count = 1 }) => sum + Number(count), 0);
  await expect.poll(told).toBe(150);
  const single = lines().filter(({ count }) => count === undefined);
  const seconds = Math.ceil((Number(lines().at(-1)?.time) - Number(lines()[0]?.time)) / 1_000);
  expect(single.length).toBeLessThanOrEqual(10 * (seconds + 1));
  expect(new Set(lines().map(({ level }) => level))).toEqual(new Set([40]));
  const callers = new Set(single.map(({ reason, principal }) => `${reason} ${principal}`));
  expect(callers).toEqual(
    new Set([
      "CREDENTIALS_MISSING undefined",
      "CREDENTIALS_INVALID undefined",
      "SCOPE_MISSING token reader",
    ]),
  );
});

it("the log names the origin of a refused page, unless it is none", async () => {
  const service = await startService();
  const call = (origin: string) => fetch(url(service, "/v1/investors"), { headers: { origin } });
  await call("https://evil.example");
  expect((await call('{"lastName":"Lovelace"}')).status).toBe(403);
  await expect.poll(() => linesWith(service, '"msg":"refused"')).toHaveLength(2);
  expect(linesWith(service, "evil")).toMatchObject([
    { level: 40, reason: "CROSS_ORIGIN", origin: "https://evil.example" },
  ]);
  expect(service.output()).not.toContain("Lovelace");
});

it("the log has an internal error under the id that its caller gets", async () => {
  const service = await startService();
  await grpcClient(service).createInvestor(aCreate());
  breakDatabase(service);
  const failure = await failureOf(grpcClient(service).getInvestor({ id: v7() }));
  expect(failure).toMatchObject({ code: "Internal", reason: "INTERNAL" });
  expect(failure.message).not.toContain("investors");
  const reply = await fetch(url(service, `/v1/investors/${v7()}`), { headers: { traceparent } });
  expect(await reply.json()).toMatchObject({ status: 500, metadata: { id: traceId } });
  await expect.poll(() => calls(service)).toHaveLength(2);
  for (const id of [String(failure.metadata?.id), traceId]) {
    const [first, ...others] = linesWith(service, id);
    expect([first?.msg, ...others.map(({ msg }) => msg)]).toEqual([
      "internal error",
      "call failed",
    ]);
    expect(JSON.stringify(first)).toContain("no such table");
  }
});
