import { execFile } from "node:child_process";
import { once } from "node:events";
import { setTimeout as delay } from "node:timers/promises";
import { promisify } from "node:util";
import { gzipSync } from "node:zlib";
import { create, toBinary } from "@bufbuild/protobuf";
import {
  Code,
  ConnectError,
  createClient,
  createServiceImplSpec,
  type ServiceImpl,
} from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { Client, credentials, Metadata, type ServiceError, status } from "@grpc/grpc-js";
import { pino } from "pino";
import { beforeAll, describe, expect, it, onTestFinished } from "vitest";
import {
  Health,
  HealthCheckResponse_ServingStatus as Serving,
} from "../gen/grpc/health/v1/health_pb.js";
import {
  GetInvestorRequestSchema,
  InvestorSchema,
  InvestorService,
} from "../gen/investor/v1/investor_pb.js";
import { createHealth } from "../src/endpoints/health.ts";
import { startEngine } from "./support/engine.ts";
import { failureOf } from "./support/errors.ts";
import { findPython, hasPython, runPython } from "./support/python.ts";
import { frame, rawCall, rawConnection } from "./support/raw-grpc.ts";
import { startInProcess } from "./support/server.ts";
import { hasTool } from "./support/tools.ts";

const getPath = "/investor.v1.InvestorService/GetInvestor";
const empty = frame(Buffer.alloc(0));

async function serve(getInvestor: ServiceImpl<typeof InvestorService>["getInvestor"]) {
  const logged: string[] = [];
  const log = pino({ level: "error" }, { write: (line) => void logged.push(line) });
  const health = createHealth([InvestorService.typeName]);
  const services = [
    createServiceImplSpec<typeof InvestorService>(InvestorService, { getInvestor }),
  ];
  const engine = await startEngine({
    ...{ kind: "grpc", services, health: health.implementation, log },
  });
  onTestFinished(engine.destroy);
  const transport = createGrpcTransport({ baseUrl: `http://127.0.0.1:${engine.port}` });
  return { ...engine, transport, health, logged, session: rawConnection(engine.port) };
}

describe("a fault of the service", () => {
  it.each([
    ["of the common form", {}],
    ["of another form", { "x-a": "b", "grpc-encoding": "gzip" }],
  ])("in a call %s is INTERNAL with an id, under which it is logged once", async (_, headers) => {
    const { transport, logged } = await serve(() => {
      throw new TypeError("password=hunter2");
    });
    const client = createClient(InvestorService, transport);
    const failure = await failureOf(client.getInvestor({}, { headers }));
    expect(failure).toMatchObject({ code: "Internal", reason: "INTERNAL" });
    expect(failure.message).toBe(`internal error ${failure.metadata?.id}`);
    expect(logged).toHaveLength(1);
    expect(logged[0]).toContain(failure.metadata?.id);
    expect(logged[0]).toContain("hunter2");
  });
});

describe("a request by gRPC that cannot be a call", () => {
  const good = toBinary(GetInvestorRequestSchema, create(GetInvestorRequestSchema, { id: "a" }));
  const gzip = { "grpc-encoding": "gzip" };
  const { INVALID_ARGUMENT, UNIMPLEMENTED, INTERNAL, RESOURCE_EXHAUSTED, OK } = status;

  it.each<[string, number, Uint8Array, object?, string?]>([
    ["bytes that are no message", INVALID_ARGUMENT, frame(Buffer.from([255, 255, 255]))],
    ["a field that ends early", INVALID_ARGUMENT, frame(Buffer.from([10, 5, 97]))],
    ["invalid UTF-8", INVALID_ARGUMENT, frame(Buffer.from([10, 2, 0xc3, 0x28]))],
    ["less than it announces", INVALID_ARGUMENT, frame(good).subarray(0, 6)],
    ["no message", UNIMPLEMENTED, Buffer.alloc(0)],
    ["two messages", UNIMPLEMENTED, Buffer.concat([empty, empty])],
    ["an unknown method", UNIMPLEMENTED, empty, {}, `${getPath}s`],
    ["an unknown compression", UNIMPLEMENTED, frame(good, true), { "grpc-encoding": "zstd" }],
    ["compression without its name", INTERNAL, frame(good, true)],
    ["broken gzip", INVALID_ARGUMENT, frame(good, true), gzip],
    ["a bomb", RESOURCE_EXHAUSTED, frame(gzipSync(Buffer.alloc(50_000_000)), true), gzip],
    ["a bad timeout", INVALID_ARGUMENT, empty, { "grpc-timeout": "soon" }],
    ["a timeout of nine digits", INVALID_ARGUMENT, empty, { "grpc-timeout": "123456789S" }],
    ["a field of the future, which is taken", OK, frame(Buffer.from([0xfa, 0x3f, 1, 97]))],
    ["gzip, which is taken", OK, frame(gzipSync(good), true), gzip],
  ])("is refused by its own code: %s", async (_, code, body, headers = {}, path = getPath) => {
    const { session, logged } = await serve(({ id }) => ({ id }));
    expect((await rawCall(session, path, body, headers)).status).toBe(code);
    expect(logged).toEqual([]);
  });

  it.each([
    ["PUT", 405, { ":method": "PUT", ":path": getPath }],
    ["CONNECT", 405, { ":method": "CONNECT", ":authority": "localhost:1" }],
    ["a POST of text", 415, { ":method": "POST", ":path": getPath, "content-type": "text/plain" }],
    ["a path of nothing", 404, { ":path": "/nothing" }],
  ])("is refused with a status of HTTP: %s", async (_, expected, headers) => {
    const { session } = await serve(({ id }) => ({ id }));
    const stream = session.request(headers).end();
    const [reply] = await once(stream, "response");
    expect(reply[":status"]).toBe(expected);
    expect("allow" in reply).toBe(expected === 405);
  });
});

describe("health by gRPC", () => {
  it("replies for the server and each service, and NOT_FOUND for others", async () => {
    const { health, transport } = await serve(() => ({}));
    const client = createClient(Health, transport);
    expect((await client.check({})).status).toBe(Serving.NOT_SERVING);
    health.setServing(true);
    expect((await client.check({ service: InvestorService.typeName })).status).toBe(
      Serving.SERVING,
    );
    const { statuses } = await client.list({});
    expect(Object.keys(statuses)).toEqual(["", InvestorService.typeName]);
    expect((await failureOf(client.check({ service: "other" }))).code).toBe("NotFound");
  });

  it("tells a watcher of every change, and ends as UNAVAILABLE at a shutdown", async () => {
    const { health, transport } = await serve(() => ({}));
    const seen: unknown[] = [];
    const watching = (async () => {
      for await (const { status } of createClient(Health, transport).watch({})) seen.push(status);
    })().catch((error) => seen.push(Code[error.code]));
    await expect.poll(() => seen).toEqual([Serving.NOT_SERVING]);
    health.setServing(true);
    await expect.poll(() => seen).toEqual([Serving.NOT_SERVING, Serving.SERVING]);
    health.end();
    await watching;
    expect(seen).toEqual([Serving.NOT_SERVING, Serving.SERVING, "Unavailable"]);
  });
});

const message = "50 % of „this“, ~100 %25\n\ud83d\ude00";

/** A call by its id, of how many milliseconds, and how it must end on every client. */
const clientCases = [
  { id: "plain", timeoutMs: 99_999_998_000, code: "OK", message: "" },
  { id: "error", timeoutMs: 20_000, code: "FAILED_PRECONDITION", message },
  { id: "slow", timeoutMs: 300, code: "DEADLINE_EXCEEDED" },
  { id: "x".repeat(70_000), timeoutMs: 20_000, code: "RESOURCE_EXHAUSTED" },
];

/** What a client tells of a call; of the trailing metadata, what the service has set. */
interface Outcome {
  code: string;
  message: string;
  body: string;
  trailing: Record<string, string>;
}

const answer: ServiceImpl<typeof InvestorService>["getInvestor"] = async ({ id }, { signal }) => {
  const metadata = { "x-why": "because", "x-two-bin": "YWI=" };
  if (id === "error") throw new ConnectError(message, Code.FailedPrecondition, metadata);
  if (id === "slow") await delay(5_000, undefined, { signal });
  return { id };
};

const requestOf = (id: string) =>
  Buffer.from(toBinary(GetInvestorRequestSchema, create(GetInvestorRequestSchema, { id })));

function byGrpcJs(port: number): Promise<Outcome[]> {
  const client = new Client(`127.0.0.1:${port}`, credentials.createInsecure());
  onTestFinished(() => client.close());
  const asItIs = (bytes: Buffer) => bytes;
  const call = ({ id, timeoutMs }: (typeof clientCases)[number]) =>
    new Promise<Outcome>((resolve) => {
      const options = { deadline: Date.now() + timeoutMs };
      const done = (error: ServiceError | null, reply?: Buffer) => {
        const trailing = Object.entries(error?.metadata.getMap() ?? {})
          .filter(([name]) => name.startsWith("x-"))
          .map(([name, value]) => [name, Buffer.isBuffer(value) ? value.toString("hex") : value]);
        resolve({
          code: String(status[error?.code ?? 0]),
          message: error?.details ?? "",
          body: reply?.toString("hex") ?? "",
          trailing: Object.fromEntries(trailing),
        });
      };
      const metadata = new Metadata();
      client.makeUnaryRequest(getPath, asItIs, asItIs, requestOf(id), metadata, options, done);
    });
  return Promise.all(clientCases.map(call));
}

const pythonCalls = `
import grpc, json, sys
address, path, cases = json.load(sys.stdin)
call = grpc.insecure_channel(address).unary_unary(path)
for request, timeout in cases:
    try:
        body, done = call.with_call(bytes.fromhex(request), timeout=timeout / 1000)
    except grpc.RpcError as error:
        body, done = b"", error
    trailing = {k: v.hex() if isinstance(v, bytes) else v
                for k, v in done.trailing_metadata() or [] if k.startswith("x-")}
    print(json.dumps({"code": done.code().name, "message": done.details(), "body": body.hex(),
                      "trailing": trailing}))
`;

const byPython = (port: number) =>
  runPython<Outcome>(pythonCalls, [
    `127.0.0.1:${port}`,
    getPath,
    clientCases.map(({ id, timeoutMs }) => [requestOf(id).toString("hex"), timeoutMs]),
  ]);

// It is installed when it is first needed.
beforeAll(async () => {
  if (hasPython) await findPython();
}, 300_000);

describe.each([
  ["grpc-js", byGrpcJs, true],
  ["Python's grpcio", byPython, hasPython],
] as const)("%s", (_, callAll, isThere) => {
  it.skipIf(!isThere)("reads every kind of reply as the service means it", async () => {
    const { port } = await serve(answer);
    const outcomes = await callAll(port);
    for (const [i, { id, code, message }] of clientCases.entries()) {
      const sent = Buffer.from(toBinary(InvestorSchema, create(InvestorSchema, { id })));
      expect(outcomes[i], id).toMatchObject({
        code,
        ...(message !== undefined && { message }),
        body: code === "OK" ? sent.toString("hex") : "",
        trailing: id === "error" ? { "x-why": "because", "x-two-bin": "6162" } : {},
      });
    }
  });
});

const pythonEndpoints = `
import grpc, json, sys
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from google.protobuf.descriptor_pool import DescriptorPool
channel = grpc.insecure_channel(json.load(sys.stdin))
database = ProtoReflectionDescriptorDatabase(channel)
pool = DescriptorPool(database)
print(json.dumps(sorted(database.get_services())))
service = pool.FindServiceByName("investor.v1.InvestorService")
print(json.dumps([method.name for method in service.methods]))
print(json.dumps(pool.FindMessageTypeByName("google.rpc.ErrorInfo").full_name))
health = health_pb2_grpc.HealthStub(channel)
print(json.dumps(health.Check(health_pb2.HealthCheckRequest()).status))
watch = health.Watch(health_pb2.HealthCheckRequest())
print(json.dumps(next(watch).status))
print(json.dumps(next(health.Watch(health_pb2.HealthCheckRequest(service="other"))).status))
`;

it.skipIf(!hasPython)("Python's clients of reflection and health work unaided", async () => {
  const { grpcPort } = await startInProcess();
  expect(await runPython(pythonEndpoints, `127.0.0.1:${grpcPort}`)).toEqual([
    ["grpc.health.v1.Health", "investor.v1.InvestorService"],
    ["CreateInvestor", "GetInvestor", "ListInvestors"],
    "google.rpc.ErrorInfo",
    Serving.SERVING,
    Serving.SERVING,
    Serving.SERVICE_UNKNOWN,
  ]);
});

it.skipIf(!hasTool("grpcurl", ["--version"]))(
  "grpcurl learns every service, method and message, and the details of an error",
  async () => {
    const { grpcPort } = await startInProcess();
    const grpcurl = async (...args: string[]) => {
      const { stdout } = await promisify(execFile)("grpcurl", ["-plaintext", ...args]);
      return stdout;
    };
    const address = `localhost:${grpcPort}`;
    const services = (await grpcurl(address, "list")).trim().split("\n");
    expect(services).toEqual([Health.typeName, InvestorService.typeName]);
    for (const symbol of [
      ...services,
      "investor.v1.InvestorService.CreateInvestor",
      "investor.v1.CreateInvestorRequest",
      "investor.v1.InvestorType",
      "google.rpc.Status",
      "google.rpc.BadRequest",
    ]) {
      expect(await grpcurl(address, "describe", symbol)).toContain(`${symbol} is `);
    }
    const wrong = grpcurl("-d", '{"country": "USA"}', address, `${services[1]}/CreateInvestor`);
    await expect(wrong).rejects.toThrow(/InvalidArgument[\s\S]*"field": "country"/);
  },
);
