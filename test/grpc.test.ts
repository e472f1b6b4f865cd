import { once } from "node:events";
import { constants } from "node:http2";
import { gzipSync } from "node:zlib";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { Client, credentials, type ServiceError, status } from "@grpc/grpc-js";
import { pino } from "pino";
import { describe, expect, it, onTestFinished } from "vitest";
import {
  Health,
  HealthCheckResponse_ServingStatus as Serving,
} from "../gen/grpc/health/v1/health_pb.js";
import { InvestorService } from "../gen/investor/v1/investor_pb.js";
import { overloaded } from "../src/failures.ts";
import { failureOf } from "./support/errors.ts";
import { temporaryFile } from "./support/folder.ts";
import { type Methods, serveMethods } from "./support/in-process.ts";
import { runPython } from "./support/python.ts";
import { frame, messages, openCall, paths, rawCall, rawConnection } from "./support/raw-grpc.ts";
import { startInProcess } from "./support/server.ts";
import { createBody } from "./support/service.ts";
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
  // The field id.
  const good = Buffer.from("\x0a\x01a");
  const [gzip, zstd] = [{ "grpc-encoding": "gzip" }, { "grpc-encoding": "zstd" }];
  const grpcJson = { "content-type": "application/grpc+json" };
  const webJson = { "content-type": "application/grpc-web+json" };

  const { UNIMPLEMENTED, INTERNAL } = status;
  const ok = { status: status.OK };
  const malformed = { status: status.INVALID_ARGUMENT, reason: "MALFORMED_REQUEST" };
  const tooLarge = { status: status.RESOURCE_EXHAUSTED, reason: "MESSAGE_TOO_LARGE" };
  const withTimeout = (text: string) => ({ "grpc-timeout": text });

  it.each<[string, { status: number; reason?: string }, Uint8Array, object?]>([
    ["bytes that are no message", malformed, frame(Buffer.of(255, 255))],
    ["a field that ends early", malformed, frame(Buffer.of(10, 5, 97))],
    ["broken JSON", malformed, frame(Buffer.from("{")), grpcJson],
    ["broken JSON by gRPC-Web", malformed, frame(Buffer.from("{")), webJson],
    ["an unknown flag", malformed, Buffer.concat([Buffer.of(2), frame(good).subarray(1)])],
    ["less than it announces", malformed, frame(good).subarray(0, 6)],
    ["less than a frame", malformed, empty.subarray(0, 3)],
    ["no message", { status: UNIMPLEMENTED }, Buffer.alloc(0)],
    ["two messages", { status: UNIMPLEMENTED }, Buffer.concat([empty, empty])],
    ["an unknown compression", { status: UNIMPLEMENTED }, frame(good, true), zstd],
    ["compression without its name", { status: INTERNAL }, frame(good, true)],
    ["gzip of no message", malformed, frame(gzipSync("a"), true), gzip],
    ["broken gzip", malformed, frame(good, true), gzip],
    ["a bomb", tooLarge, frame(gzipSync(Buffer.alloc(50_000_000)), true), gzip],
    ["a bad timeout", malformed, empty, withTimeout("soon")],
    ["nine digits of time", malformed, empty, withTimeout("123456789S")],
    ["a field of the future, which is taken", ok, frame(Buffer.of(0xfa, 0x3f, 1, 97))],
    ["gzip, which is taken", ok, frame(gzipSync(good), true), gzip],
  ])("is refused by its own code and reason: %s", async (_, expected, body, headers = {}) => {
    const { session, logged } = await serve(({ id }) => ({ id }));
    for (const type of ["application/grpc", "application/grpc-web"]) {
      const reply = await rawCall(session, getPath, body, { "content-type": type, ...headers });
      expect(reply, type).toEqual(expected);
    }
    expect(logged).toEqual([]);
  });

  it("is refused by its own code if its method is unknown", async () => {
    const { session } = await serve(({ id }) => ({ id }));
    expect(await rawCall(session, `${getPath}s`, empty)).toEqual({ status: UNIMPLEMENTED });
  });

  const [put, post] = [{ ":method": "PUT" }, { ":method": "POST" }];
  const withType = (type: string) => ({ ":path": getPath, "content-type": type });

  it.each([
    ["PUT", 405, { ...put, ":path": getPath }],
    ["PUT of gRPC", 405, { ...put, ...withType("application/grpc") }],
    ["an unknown format", 415, { ...post, ...withType("application/grpc+xml") }],
    ["CONNECT", 405, { ":method": "CONNECT", ":authority": "localhost:1" }],
    ["a POST of text", 415, { ...post, ...withType("text/plain") }],
    ["a path of nothing", 404, { ":path": "/nothing" }],
  ])("is refused with a status of HTTP: %s", async (_, expected, headers) => {
    const { session } = await serve(({ id }) => ({ id }));
    const stream = session.request(headers).end();
    const [reply] = await once(stream, "response");
    expect(reply[":status"]).toBe(expected);
    expect("allow" in reply).toBe(expected === 405);
  });
});

it.each([{}, { "grpc-encoding": "gzip" }])(
  "an error that may be repeated is trailers alone with a delay for gRPC, to a call with %j",
  async (headers) => {
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

it("health by gRPC is that of the server and each service, NOT_FOUND for others, and no stream", async () => {
  const { port } = await startInProcess();
  const transport = createGrpcTransport({ baseUrl: `http://127.0.0.1:${port}` });
  const client = createClient(Health, transport);
  for (const service of ["", InvestorService.typeName]) {
    expect((await client.check({ service })).status).toBe(Serving.SERVING);
  }
  expect(Object.keys((await client.list({})).statuses)).toEqual(["", InvestorService.typeName]);
  expect((await failureOf(client.check({ service: "other" }))).code).toBe("NotFound");
  const watching = client.watch({})[Symbol.asyncIterator]().next();
  expect((await failureOf(watching)).code).toBe("Unimplemented");
});

it("grpc-js reads the message and the metadata of an error", async () => {
  const message = "50 % of „this“, ~100 %25\n\ud83d\ude00";
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
print(json.dumps(database.FindFileContainingSymbol("investor.v1.InvestorService.GetInvestor").name))
service = pool.FindServiceByName("investor.v1.InvestorService")
print(json.dumps([method.name for method in service.methods]))
print(json.dumps(pool.FindMessageTypeByName("google.rpc.ErrorInfo").full_name))
health = health_pb2_grpc.HealthStub(channel)
print(json.dumps(health.Check(health_pb2.HealthCheckRequest()).status), flush=True)
os._exit(0)
`;

it("Python's clients of reflection and health work unaided", needs("Python"), async () => {
  const { port } = await startInProcess();
  expect(await runPython(pythonEndpoints, `127.0.0.1:${port}`)).toEqual([
    ["grpc.health.v1.Health", "investor.v1.InvestorService"],
    "investor/v1/investor.proto",
    ["CreateInvestor", "GetInvestor", "ListInvestors"],
    "google.rpc.ErrorInfo",
    Serving.SERVING,
  ]);
});

/** Makes calls at once, and prints what each was told. */
const pythonCreates = `
import grpc, json, sys
create = grpc.insecure_channel(json.load(sys.stdin)).unary_unary("${paths.create}")
body = bytes.fromhex("${createBody().toString("hex", 5)}")
for call in [create.future(body) for _ in range(200)]:
  error = call.exception()
  details = dict(error.trailing_metadata()).get("grpc-status-details-bin", b"")
  print(json.dumps([error.code().name, b"CREDENTIALS_MISSING" in details]), flush=True)
`;

it(
  "Python's client learns of each of 200 calls that it is refused, and why",
  needs("Python"),
  async () => {
    const tokens = temporaryFile("orders t0ken-of-the-orders\n");
    const { port } = await startInProcess({ "--auth-tokens-file": tokens });
    const told = await runPython(pythonCreates, `127.0.0.1:${port}`);
    expect(told).toEqual(Array(200).fill(["UNAUTHENTICATED", true]));
  },
);
