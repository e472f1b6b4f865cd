/** What the metrics and the log tell of calls. */
import { createHash, X509Certificate } from "node:crypto";
import { once } from "node:events";
import { readFileSync, writeFileSync } from "node:fs";
import { v7 } from "uuid";
import { expect, it } from "vitest";
import { maxTextLength } from "../src/investor/investor.ts";
import { createAuthority, getOverTls, writeServerFlags } from "./support/certificates.ts";
import { clientsOf } from "./support/clients.ts";
import { failureOf } from "./support/errors.ts";
import { temporaryFile, temporaryFolder } from "./support/folder.ts";
import { clientPreface, fieldsOf, openStream } from "./support/http2-frames.ts";
import {
  frame,
  messages,
  openCall,
  paths,
  rawCall,
  rawConnection,
  replyOf,
} from "./support/raw-grpc.ts";
import { aCreate } from "./support/records.ts";
import { startInProcess } from "./support/server.ts";
import {
  ask,
  createBody,
  grpcClient,
  lockDatabase,
  metric,
  preload,
  readMetrics,
  startService,
  storeWrong,
  untilInFlight,
  untilWritten,
} from "./support/service.ts";
import { http1, openWire } from "./support/tcp.ts";
import { needs } from "./support/tools.ts";

type Service = Awaited<ReturnType<typeof startInProcess>>;

const traceId = "0af7651916cd43dd8448eb211c80319c";
const traceparent = `00-${traceId}-b7ad6b7169203331-01`;

/** Waits until one call of a method has ended with a code. */
async function untilCounted(service: Service, method: string, code: string, transport: string) {
  const name = "investor_records_rpc_server_call_duration_seconds_count";
  const call = `method="investor.v1.InvestorService/${method}",code="${code}"`;
  const counted = () => metric(service, name, `{${call},transport="${transport}"}`);
  await expect.poll(counted).toBe(1);
}

type Line = Service["lines"][number];

/** The lines of the log about calls, or about those that were refused. */
const calls = ({ lines }: Service) => lines.filter(({ method }) => method);
const refusals = ({ lines }: Service) => lines.filter(({ msg }) => String(msg).includes("refused"));

/** How many events lines tell of: one each, unless they count more. */
const countIn = (lines: Line[]) => lines.reduce((sum, { count = 1 }) => sum + Number(count), 0);

/** Over how many seconds lines were written, those in part included. */
function secondsOf(lines: Line[]): number {
  const times = lines.map(({ time }) => Number(time));
  return Math.ceil((Math.max(...times) - Math.min(...times)) / 1_000) + 1;
}

/** Starts the service for callers: each a name and what scopes it has if not all, or a token alone. */
function startFor(callers: string[], flags: Record<string, string> = {}) {
  const lines = callers.map((caller) => caller.replace(/^\w+(?= |$)/, "$& t0ken-of-the-$&-caller"));
  return startInProcess({ "--auth-tokens-file": temporaryFile(lines.join("\n")), ...flags });
}
const tokenOf = (name: string) => ({ authorization: `Bearer t0ken-of-the-${name}-caller` });

/** Expects that the log and the metrics have one refusal by a limit, the last one. */
async function expectLimited(
  service: Service & { authorization?: string },
  limit: string,
  line: object = {},
): Promise<void> {
  const name = "investor_records_overloaded_total";
  await expect.poll(() => metric(service, name, `{limit="${limit}"}`)).toBe(1);
  const refusal = { level: 40, msg: "refused", reason: "OVERLOADED", limit, ...line };
  expect(refusals(service).at(-1)).toMatchObject(refusal);
}

it("metrics count every call by method, code and transport, and the work of the store", async () => {
  const service = await startInProcess();
  const clients = clientsOf(service);
  for (const [transport, client] of [
    ["grpc", clients.gRPC],
    ["connect", clients.Connect],
    ["grpc-web", clients["gRPC-Web"]],
  ] as const) {
    await client.createInvestor(aCreate());
    await failureOf(client.createInvestor({}));
    await untilCounted(service, "CreateInvestor", "OK", transport);
    await untilCounted(service, "CreateInvestor", "INVALID_ARGUMENT", transport);
  }
  await ask(service, "/v1/investors");
  await ask(service, `/v1/investors/${v7()}`);
  await untilCounted(service, "ListInvestors", "OK", "rest");
  await untilCounted(service, "GetInvestor", "NOT_FOUND", "rest");
  const operation = "investor_records_store_operation_duration_seconds_count";
  expect(await metric(service, operation, '{operation="insert"}')).toBe(3);
  expect(await metric(service, operation, '{operation="list"}')).toBe(1);
  expect(await metric(service, operation, '{operation="check"}')).toBeGreaterThan(0);
  const batches = "investor_records_store_batch_size_count";
  expect(await metric(service, batches, '{operation="insert"}')).toBe(3);
  expect(await metric(service, "process_resident_memory_bytes")).toBeGreaterThan(1e6);
});

it("metrics tell the version, and whether the service is ready", async () => {
  const service = await startInProcess({ "--drain-delay": "5s" });
  const { version } = JSON.parse(readFileSync("package.json", "utf8"));
  const labels = `{version="${version}",revision="",node="${process.versions.node}"}`;
  expect(await metric(service, "investor_records_build_info", labels)).toBe(1);
  expect(await metric(service, "investor_records_ready")).toBe(1);
  const stopped = service.stop();
  expect(await metric(service, "investor_records_ready")).toBe(0);
  await stopped;
});

it("metrics tell when the certificate expires, also after it is replaced", async () => {
  const authority = await createAuthority();
  const flags = await writeServerFlags(temporaryFolder(), authority);
  const service = await startInProcess(flags);
  const shown = async () => {
    const metrics = await getOverTls(service, "/metrics", { ca: authority.ca });
    const name = "investor_records_tls_certificate_expiry_timestamp_seconds";
    return Number(new RegExp(`^${name} (\\S+)$`, "m").exec(metrics)?.[1]);
  };
  const expiry = (cert: string) => new X509Certificate(cert).validToDate.getTime() / 1_000;
  expect(await shown()).toBe(expiry(readFileSync(flags["--tls-cert"], "utf8")));
  const { cert, key } = await authority.sign("server", 30);
  writeFileSync(flags["--tls-cert"], cert);
  writeFileSync(flags["--tls-key"], key);
  await service.reload();
  expect(await shown()).toBe(expiry(cert));
});

it("metrics count calls that are refused, and those that nobody waits for, but nothing that is no call", async () => {
  const service = await startInProcess({ "--max-in-flight": "1", "--request-timeout": "10m" });
  const { socket } = openWire(service.port, clientPreface);
  // The client of Node.js would end the body of what it cancels.
  socket.write(openStream(1, fieldsOf(paths.create)));
  await untilInFlight(service, 1);
  await failureOf(grpcClient(service).listInvestors({}));
  socket.destroy();
  expect((await ask(service, paths.create, { method: "PUT" })).status).toBe(405);
  expect((await ask(service, paths.create, { method: "POST", body: "a" })).status).toBe(415);
  await untilCounted(service, "CreateInvestor", "CANCELLED", "grpc");
  await untilCounted(service, "ListInvestors", "UNAVAILABLE", "grpc");
  expect(await readMetrics(service)).not.toContain('transport="connect"');
});

it("no mistake of a client is INTERNAL in the metrics or an error in the log", async () => {
  const service = await startInProcess();
  const headers = { "content-type": "application/json" };
  await ask(service, "/v1/investors", { method: "POST", body: "x".repeat(70_000), headers });
  await untilCounted(service, "CreateInvestor", "RESOURCE_EXHAUSTED", "rest");
  await ask(service, "/v1/investors", { method: "POST", body: "text" });
  await untilCounted(service, "CreateInvestor", "INVALID_ARGUMENT", "rest");
  // Which the protocol calls INTERNAL: a message is compressed, and nothing says how.
  const reply = rawCall(rawConnection(service.port), paths.create, frame(Buffer.of(0), true));
  expect((await reply).status).toBe(13);
  await untilCounted(service, "CreateInvestor", "INVALID_ARGUMENT", "grpc");
  expect(service.errors).toEqual([]);
});

it("nor is a connection that breaks before its replies are written, as after bytes that are no HTTP", async () => {
  const service = await startInProcess({ "--log-calls": "true" });
  const client = grpcClient(service);
  // More than a response buffers.
  const request = aCreate({ addressLine1: "\u{1F3E0}".repeat(maxTextLength) });
  await Promise.all(Array.from({ length: 100 }, () => client.createInvestor(request)));
  const web = { "content-type": "application/grpc-web" };
  const list = http1("POST", paths.list, web, "\0".repeat(5));
  await openWire(service.port, `${list}no HTTP\r\n\r\n`).closed;
  await untilCounted(service, "ListInvestors", "CANCELLED", "grpc-web");
  const stream = openCall(rawConnection(service.port, { initialWindowSize: 0 }), paths.list);
  await once(stream.end(frame(new Uint8Array())), "response");
  stream.close();
  await untilCounted(service, "ListInvestors", "CANCELLED", "grpc");
  expect(service.errors).toEqual([]);
  // An audit has what may have been sent of it.
  expect(calls(service)).toContainEqual(
    expect.objectContaining({ level: 30, code: "CANCELLED", count: 100 }),
  );
});

it.each(["debug", "info"])(
  "the log has a line at debug for each call, and none at info: %s",
  async (level) => {
    const service = await startInProcess({ "--log-level": level });
    const { id } = await grpcClient(service).createInvestor(aCreate());
    await ask(service, "/v1/investors/none", { headers: { traceparent } });
    await untilCounted(service, "GetInvestor", "NOT_FOUND", "rest");
    const missing = {
      level: 20,
      method: "investor.v1.InvestorService/GetInvestor",
      transport: "rest",
      code: "NOT_FOUND",
      reason: "INVESTOR_NOT_FOUND",
      durationMs: expect.any(Number),
      peer: expect.stringMatching(/^127\.0\.0\.1:\d+$/),
      traceId,
    };
    const told = [{ level: 20, code: "OK", created: id, msg: "call" }, missing];
    expect(calls(service)).toMatchObject(level === "debug" ? told : []);
    for (const line of calls(service)) expect(line).not.toHaveProperty("principal");
  },
);

it("the log warns of each call that the store fails", async () => {
  const service = await startInProcess({ "--request-timeout": "200ms" });
  lockDatabase(service);
  for (let i = 0; i < 3; i += 1) await failureOf(grpcClient(service).createInvestor(aCreate()));
  const failed = { level: 40, code: "DEADLINE_EXCEEDED", msg: "call failed" };
  await expect.poll(() => calls(service)).toMatchObject(Array(3).fill(failed));
});

it("the log warns of no call whose client's own deadline has passed, however early its timer fires", async () => {
  const early = `
    const start = globalThis.setTimeout;
    globalThis.setTimeout = (work, ms, ...args) => start(work, ms / 2, ...args);`;
  const service = await startService({ LOG_LEVEL: "debug", NODE_OPTIONS: preload(early) });
  lockDatabase(service);
  const session = rawConnection(service.port);
  await rawCall(session, paths.create, createBody(), { "grpc-timeout": "1500m" });
  await untilWritten(service, "call failed");
  const line = service.output().match(/.*call failed.*/)?.[0] ?? "";
  expect(JSON.parse(line)).toMatchObject({ level: 20, code: "DEADLINE_EXCEEDED" });
});

it("the log names the caller, and by a hash who has a token without a name", async () => {
  const lone = "t0ken-without-a-name";
  const service = await startFor(["orders", lone], { "--log-level": "debug" });
  for (const headers of [tokenOf("orders"), { authorization: `Bearer ${lone}` }]) {
    await ask(service, "/v1/investors", { headers });
  }
  const digest = createHash("sha256").update(lone).digest("hex").slice(0, 8);
  await expect
    .poll(() => calls(service).map(({ principal }) => principal))
    .toEqual(["token orders", `token ${digest}`]);
});

it("the log warns of ten refused strangers and callers a second, and counts the others", async () => {
  const service = await startFor(["reader investors:read"]);
  const { authorization } = tokenOf("reader");
  const tokens = [undefined, "Bearer t0ken-of-a-stranger", authorization];
  const clients = tokens.map((token) => clientsOf(service, { authorization: token }).gRPC);
  for (let i = 0; i < 50; i += 1) {
    await Promise.all(clients.map((client) => failureOf(client.createInvestor(aCreate()))));
  }
  await expect.poll(() => countIn(refusals(service))).toBe(150);
  const single = refusals(service).filter(({ count }) => count === undefined);
  expect(single.length).toBeLessThanOrEqual(20 * secondsOf(refusals(service)));
  for (const [reason, principal] of [
    ["CREDENTIALS_MISSING", undefined],
    ["CREDENTIALS_INVALID", undefined],
    ["SCOPE_MISSING", "token reader"],
  ] as const) {
    const logged = single.filter((line) => line.reason === reason);
    expect(new Set(logged.map((line) => line.principal))).toEqual(new Set([principal]));
    const name = "investor_records_refusals_unlogged_total";
    const unlogged = await metric({ ...service, authorization }, name, `{reason="${reason}"}`);
    expect(unlogged + logged.length, reason).toBe(50);
  }
});

it("the log names ten faults and ten calls that failed with one a second, and counts the others", async () => {
  const service = await startInProcess();
  const id = storeWrong(service);
  const client = grpcClient(service);
  const gets = Array.from({ length: 200 }, () => failureOf(client.getInvestor({ id })));
  await Promise.all(gets);
  for (const [single, rest] of [
    ["internal error", "more were internal errors in the same second"],
    ["call failed", "more failed with INTERNAL in the same second"],
  ]) {
    const lines = () => service.lines.filter(({ msg }) => msg === single || msg === rest);
    await expect.poll(() => countIn(lines())).toBe(200);
    const named = lines().filter(({ msg }) => msg === single);
    expect(named.length).toBeLessThanOrEqual(10 * secondsOf(lines()));
  }
});

it("with --log-calls the log names each record that may have been stored, however many", async () => {
  const service = await startInProcess({ "--log-calls": "true", "--request-timeout": "100ms" });
  lockDatabase(service);
  const client = grpcClient(service);
  const creates = Array.from({ length: 50 }, () => failureOf(client.createInvestor(aCreate())));
  await Promise.all(creates);
  const attempted = () => new Set(calls(service).map(({ attempted }) => attempted));
  await expect.poll(() => attempted().size).toBe(50);
});

it("a caller has seven of eight calls, and one above a limit is told which, as the log and the metrics are", async () => {
  const service = await startFor(["greedy", "modest"], { "--max-in-flight": "8" });
  const session = rawConnection(service.port);
  const authorized = { ...service, ...tokenOf("modest") };
  // What has ended does not count, for or against its caller.
  await replyOf(openCall(session, paths.create, tokenOf("greedy")).end(createBody()));
  for (const [limit, holder, count, inFlight] of [
    ["calls in flight of one caller", "greedy", 7, 7],
    ["calls in flight", "modest", 1, 8],
  ] as const) {
    for (let i = 0; i < count; i += 1) openCall(session, paths.create, tokenOf(holder));
    await untilInFlight(authorized, inFlight);
    const failure = await failureOf(clientsOf(service, tokenOf(holder)).Connect.listInvestors({}));
    expect(failure).toMatchObject({ reason: "OVERLOADED", metadata: { limit } });
    expect(failure.message).toContain(`too many ${limit} at once`);
    await expectLimited(authorized, limit);
  }
});

it("requests for metrics above their limit are in the log and the metrics, as calls are", async () => {
  const service = await startFor(["scraper metrics"]);
  const request = http1("GET", "/metrics", tokenOf("scraper"));
  const { socket, received } = openWire(service.port, request.repeat(2));
  await expect.poll(received).toContain("503 Service Unavailable");
  const peer = `127.0.0.1:${socket.localPort}`;
  const authorized = { ...service, ...tokenOf("scraper") };
  await expectLimited(authorized, "requests for metrics of one caller", { peer });
  expect(refusals(service)).toHaveLength(1);
});

it("a public call above its limit is in the log and the metrics, and no other is", async () => {
  const service = await startInProcess({ "--log-level": "debug", "--log-calls": "true" });
  const session = rawConnection(service.port);
  for (let i = 0; i < 64; i += 1) openCall(session, paths.reflect);
  const rejected = await rawCall(session, paths.reflect, messages.empty);
  expect(rejected.reason).toBe("OVERLOADED");
  session.destroy();
  const other = rawConnection(service.port);
  expect((await rawCall(other, paths.check, messages.empty)).status).toBe(0);
  const method = "grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
  const peer = expect.stringMatching(/^127\.0\.0\.1:\d+$/);
  await expectLimited(service, "reflection streams", { method, peer });
  expect(calls(service)).toHaveLength(1);
  expect(await readMetrics(service)).not.toContain("grpc.");
});

it("refusals that are below the level of the log are counted", async () => {
  const service = await startFor(["reader investors:read"], { "--log-level": "error" });
  const authorized = { ...service, ...tokenOf("reader") };
  await failureOf(clientsOf(service, tokenOf("reader")).gRPC.createInvestor(aCreate()));
  const name = "investor_records_refusals_unlogged_total";
  await expect.poll(() => metric(authorized, name, '{reason="SCOPE_MISSING"}')).toBe(1);
  expect(refusals(service)).toEqual([]);
});

it("the log has a fault under the trace of its call, whose caller gets it as an id", async () => {
  const service = await startInProcess();
  const id = storeWrong(service);
  const reply = await ask(service, `/v1/investors/${id}`, { headers: { traceparent } });
  expect(await reply.json()).toMatchObject({ status: 500, metadata: { id: traceId } });
  const ofTrace = () => service.lines.filter((line) => line.traceId === traceId);
  await expect.poll(ofTrace).toMatchObject([
    { msg: "internal error", err: { message: expect.stringContaining("is not a record") } },
    { msg: "call failed", code: "INTERNAL" },
  ]);
});

it("the log names peers by IPv6 as URLs do", needs("IPv6"), async () => {
  const service = await startInProcess({ "--host": "::1", "--log-calls": "true" });
  await (await fetch(`http://[::1]:${service.port}/v1/investors`)).text();
  const peer = expect.stringMatching(/^\[::1\]:\d+$/);
  await expect.poll(() => calls(service)).toMatchObject([{ peer }]);
});
