import { once } from "node:events";
import { constants } from "node:http2";
import { gzipSync } from "node:zlib";
import { create, toBinary } from "@bufbuild/protobuf";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import {
  createConnectTransport,
  createGrpcTransport,
  createGrpcWebTransport,
} from "@connectrpc/connect-node";
import { Client, credentials, type ServiceError, status } from "@grpc/grpc-js";
import { pino } from "pino";
import { describe, expect, it, onTestFinished } from "vitest";
import {
  Health,
  HealthCheckResponse_ServingStatus as Serving,
} from "../gen/grpc/health/v1/health_pb.js";
import { GetInvestorRequestSchema, InvestorService } from "../gen/investor/v1/investor_pb.js";
import { overloaded } from "../src/failures.ts";
import { failureOf } from "./support/errors.ts";
import { type Methods, serveMethods } from "./support/in-process.ts";
import { runPython } from "./support/python.ts";
import { frame, messages, openCall, paths, rawCall, rawConnection } from "./support/raw-grpc.ts";
import { startInProcess } from "./support/server.ts";
import { needs } from "./support/tools.ts";

const getPath = paths.get;
const { empty } = messages;

async function serve(getInvestor: Required<Methods>["getInvestor"]) {
  const logged: string[] = [];
  const log = pino({ level: "error" }, { write: (line) => void logged.push(line) });
  const { port } = await serveMethods({ getInvestor }, { log });
  return { port, logged, session: rawConnection(port) };
}

describe("a request by gRPC that cannot be a call", () => {
  const good = toBinary(GetInvestorRequestSchema, create(GetInvestorRequestSchema, { id: "a" }));
  const [gzip, zstd] = [{ "grpc-encoding": "gzip" }, { "grpc-encoding": "zstd" }];
  const { INVALID_ARGUMENT, UNIMPLEMENTED, INTERNAL, RESOURCE_EXHAUSTED, OK } = status;

  const [malformed, tooLarge] = ["MALFORMED_REQUEST", "MESSAGE_TOO_LARGE"];
  const large = Buffer.alloc(50_000_000);

  const grpcJson = { "content-type": "application/grpc+json" };
  const webJson = { "content-type": "application/grpc-web+json" };

  it.each<[string, number, string | undefined, Uint8Array, object?]>([
    ["bytes that are no message", INVALID_ARGUMENT, malformed, frame(Buffer.of(255, 255))],
    ["a field that ends early", INVALID_ARGUMENT, malformed, frame(Buffer.of(10, 5, 97))],
    ["invalid UTF-8", INVALID_ARGUMENT, malformed, frame(Buffer.of(10, 2, 0xc3, 0x28))],
    ["broken JSON", INVALID_ARGUMENT, malformed, frame(Buffer.from("{")), grpcJson],
    ["broken JSON by gRPC-Web", INVALID_ARGUMENT, malformed, frame(Buffer.from("{")), webJson],
    ["less than it announces", INVALID_ARGUMENT, malformed, frame(good).subarray(0, 6)],
    ["less than a frame", INVALID_ARGUMENT, malformed, empty.subarray(0, 3)],
    ["no message", UNIMPLEMENTED, undefined, Buffer.alloc(0)],
    ["two messages", UNIMPLEMENTED, undefined, Buffer.concat([empty, empty])],
    ["an unknown compression", UNIMPLEMENTED, undefined, frame(good, true), zstd],
    ["compression without its name", INTERNAL, undefined, frame(good, true)],
    ["gzip of no message", INVALID_ARGUMENT, malformed, frame(gzipSync("a"), true), gzip],
    ["broken gzip", INVALID_ARGUMENT, malformed, frame(good, true), gzip],
    ["a bomb", RESOURCE_EXHAUSTED, tooLarge, frame(gzipSync(large), true), gzip],
    ["a bad timeout", INVALID_ARGUMENT, malformed, empty, { "grpc-timeout": "soon" }],
    ["nine digits of time", INVALID_ARGUMENT, malformed, empty, { "grpc-timeout": "123456789S" }],
    ["a field of the future, which is taken", OK, undefined, frame(Buffer.of(0xfa, 0x3f, 1, 97))],
    ["gzip, which is taken", OK, undefined, frame(gzipSync(good), true), gzip],
  ])("is refused by its own code and reason: %s", async (_, code, reason, body, headers = {}) => {
    const { session, logged } = await serve(({ id }) => ({ id }));
    for (const type of ["application/grpc", "application/grpc-web"]) {
      const reply = await rawCall(session, getPath, body, { "content-type": type, ...headers });
      expect(reply, type).toEqual({ status: code, reason });
    }
    expect(logged).toEqual([]);
  });

  it("is refused by its own code if its method is unknown", async () => {
    const { session } = await serve(({ id }) => ({ id }));
    expect((await rawCall(session, `${getPath}s`, empty)).status).toBe(UNIMPLEMENTED);
  });

  const byGrpc = { ":method": "POST", ":path": getPath, "content-type": "application/grpc" };

  it.each([
    ["PUT", 405, { ":method": "PUT", ":path": getPath }],
    ["PUT of gRPC", 405, { ...byGrpc, ":method": "PUT" }],
    ["an unknown format", 415, { ...byGrpc, "content-type": "application/grpc+xml" }],
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

it.each([
  ["uncompressed", {}],
  ["in gzip", { "grpc-encoding": "gzip" }],
])(
  "an error that may be repeated is trailers alone with a delay for gRPC: %s",
  async (_, headers) => {
    const { session } = await serve(() => {
      throw overloaded("calls");
    });
    const stream = openCall(session, getPath, headers).end(empty);
    const [reply, flags] = await once(stream, "response");
    expect(reply).toMatchObject({
      "grpc-status": String(status.UNAVAILABLE),
      "grpc-retry-pushback-ms": "1000",
      reason: "OVERLOADED",
    });
    expect(flags & constants.NGHTTP2_FLAG_END_STREAM).not.toBe(0);
  },
);

it("health by gRPC is that of the server and each service, and NOT_FOUND for others", async () => {
  const { port } = await startInProcess();
  const transport = createGrpcTransport({ baseUrl: `http://127.0.0.1:${port}` });
  const client = createClient(Health, transport);
  for (const service of ["", InvestorService.typeName]) {
    expect((await client.check({ service })).status).toBe(Serving.SERVING);
  }
  expect(Object.keys((await client.list({})).statuses)).toEqual(["", InvestorService.typeName]);
  expect((await failureOf(client.check({ service: "other" }))).code).toBe("NotFound");
});

const message = "50 % of „this“, ~100 %25\n\ud83d\ude00";

it("grpc-js reads the message and the metadata of an error", async () => {
  const { port } = await serve(() => {
    const metadata = { "x-why": "because", "x-two-bin": "YWI=" };
    throw new ConnectError(message, Code.FailedPrecondition, metadata);
  });
  const client = new Client(`127.0.0.1:${port}`, credentials.createInsecure());
  onTestFinished(() => client.close());
  const asItIs = (bytes: Buffer) => bytes;
  const { promise, resolve } = Promise.withResolvers<ServiceError | null>();
  client.makeUnaryRequest(getPath, asItIs, asItIs, Buffer.alloc(0), resolve);
  const error = await promise;
  expect(error).toMatchObject({ code: status.FAILED_PRECONDITION, details: message });
  expect(error?.metadata.getMap()).toMatchObject({
    "x-why": "because",
    "x-two-bin": Buffer.from("ab"),
  });
});

it.each([
  ["gRPC", createGrpcTransport],
  ["gRPC-Web", createGrpcWebTransport],
  ["Connect", createConnectTransport],
])("watching health is unimplemented by %s, for which its protocol provides", async (_, create) => {
  const { port } = await startInProcess();
  const transport = create({ baseUrl: `http://127.0.0.1:${port}`, httpVersion: "2" });
  const watch = createClient(Health, transport).watch({})[Symbol.asyncIterator]();
  expect((await failureOf(watch.next())).code).toBe("Unimplemented");
});

// Ends at once: a call that is still open when Python tidies up may block it for ever.
const pythonEndpoints = `
import grpc, json, os, sys
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
try:
    next(health.Watch(health_pb2.HealthCheckRequest()))
except grpc.RpcError as error:
    print(json.dumps(error.code().name), flush=True)
os._exit(0)
`;

it("Python's clients of reflection and health work unaided", needs("Python"), async () => {
  const { port } = await startInProcess();
  expect(await runPython(pythonEndpoints, `127.0.0.1:${port}`)).toEqual([
    ["grpc.health.v1.Health", "investor.v1.InvestorService"],
    ["CreateInvestor", "GetInvestor", "ListInvestors"],
    "google.rpc.ErrorInfo",
    Serving.SERVING,
    "UNIMPLEMENTED",
  ]);
});
