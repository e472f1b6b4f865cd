import { setTimeout as delay } from "node:timers/promises";
import { create, toBinary } from "@bufbuild/protobuf";
import { Code, ConnectError, createServiceImplSpec, type ServiceImpl } from "@connectrpc/connect";
import { Client, credentials, Metadata, type ServiceError, status } from "@grpc/grpc-js";
import { beforeAll, describe, expect, it, onTestFinished } from "vitest";
import {
  GetInvestorRequestSchema,
  InvestorSchema,
  InvestorService,
} from "../../gen/investor/v1/investor_pb.js";
import { createHealth } from "../../src/operations/health.ts";
import { startEngine } from "../support/engine.ts";
import { openGate } from "../support/gate.ts";
import { findPython, hasPython, runPython } from "../support/python.ts";
import { startService } from "../support/service.ts";

const path = `/${InvestorService.typeName}/GetInvestor`;

// It is installed when it is first needed.
beforeAll(async () => {
  if (hasPython) await findPython();
}, 300_000);

/** What a client tells of a call; of the metadata, what the service itself has set. */
interface Outcome {
  code: string;
  message: string;
  body: string;
  initial: Record<string, string>;
  trailing: Record<string, string>;
}

/** A call, and how it must end on every client. */
interface Case {
  name: string;
  /** The id of the request, by which the service knows what to do. */
  id: string;
  /** In hexadecimal, instead of the request. */
  bytes?: string;
  timeoutMs?: number;
  outcome: Partial<Outcome>;
}

const message = "50 % of „this“, ~100 %25\n\ud83d\ude00";
const hex = (text: string) => Buffer.from(text).toString("hex");

const cases: Case[] = [
  {
    name: "a success, which has no message",
    id: "plain",
    outcome: { code: "OK", message: "", initial: {}, trailing: {} },
  },
  {
    name: "headers, trailers and bytes in them of any length",
    id: "metadata",
    outcome: {
      code: "OK",
      initial: { "x-header": "first", "x-one-bin": hex("\u0001"), "x-three-bin": hex("abc") },
      trailing: { "x-trailer": "last", "x-two-bin": hex("ab") },
    },
  },
  {
    name: "an error, its message, and its metadata as trailers",
    id: "error",
    outcome: {
      code: "FAILED_PRECONDITION",
      message,
      initial: {},
      trailing: { "x-why": "because" },
    },
  },
  {
    name: "headers of an error apart from its trailers",
    id: "error with headers",
    outcome: {
      code: "FAILED_PRECONDITION",
      initial: { "x-header": "first" },
      trailing: { "x-why": "because" },
    },
  },
  {
    name: "an unpaired surrogate in a message as what stands for it",
    id: "surrogate",
    outcome: { code: "INTERNAL", message: "a\ufffdb" },
  },
  {
    name: "bytes that are no message",
    id: "",
    bytes: "ffffff",
    outcome: { code: "INVALID_ARGUMENT" },
  },
  {
    name: "a request that is too large",
    id: "",
    bytes: "0a".repeat(70_000),
    outcome: { code: "RESOURCE_EXHAUSTED" },
  },
  {
    name: "a timeout of as many digits as there may be",
    id: "plain",
    timeoutMs: 99_999_998_000,
    outcome: { code: "OK" },
  },
  {
    name: "a deadline that passes",
    id: "slow",
    timeoutMs: 300,
    outcome: { code: "DEADLINE_EXCEEDED" },
  },
];

const implementation: Partial<ServiceImpl<typeof InvestorService>> = {
  async getInvestor({ id }, { responseHeader, responseTrailer, signal }) {
    if (id === "metadata") {
      responseHeader.set("x-header", "first");
      responseHeader.set("x-one-bin", "AQ==");
      responseHeader.set("x-three-bin", "YWJj");
      responseTrailer.set("x-trailer", "last");
      responseTrailer.set("x-two-bin", "YWI=");
    }
    if (id === "error with headers") responseHeader.set("x-header", "first");
    if (id.startsWith("error")) {
      throw new ConnectError(message, Code.FailedPrecondition, { "x-why": "because" });
    }
    if (id === "surrogate") throw new ConnectError("a\ud800b", Code.Internal);
    if (id === "slow") await delay(5_000, undefined, { signal });
    return { id };
  },
};

function requestOf({ id, bytes }: Case): Buffer {
  if (bytes !== undefined) return Buffer.from(bytes, "hex");
  return Buffer.from(toBinary(GetInvestorRequestSchema, create(GetInvestorRequestSchema, { id })));
}

function ownOf(metadata: Metadata | undefined): Record<string, string> {
  const fields = Object.entries(metadata?.getMap() ?? {}).filter(([name]) => name.startsWith("x-"));
  return Object.fromEntries(
    fields.map(([name, value]) => [name, Buffer.isBuffer(value) ? value.toString("hex") : value]),
  );
}

async function byGrpcJs(port: number): Promise<Outcome[]> {
  const client = new Client(`127.0.0.1:${port}`, credentials.createInsecure());
  onTestFinished(() => client.close());
  const asItIs = (bytes: Buffer) => bytes;
  const call = (each: Case) =>
    new Promise<Outcome>((resolve) => {
      let initial: Metadata | undefined;
      let ended: Pick<ServiceError, "code" | "details" | "metadata"> | undefined;
      let body = "";
      const deadline = Date.now() + (each.timeoutMs ?? 20_000);
      client
        .makeUnaryRequest(
          path,
          asItIs,
          asItIs,
          requestOf(each),
          new Metadata(),
          { deadline },
          (_, reply) => {
            body = reply?.toString("hex") ?? "";
          },
        )
        .on("metadata", (metadata) => {
          initial = metadata;
        })
        .on("status", (status) => {
          ended = status;
        });
      const timer = setInterval(() => {
        if (ended === undefined) return;
        clearInterval(timer);
        resolve({
          code: status[ended.code],
          message: ended.details,
          body,
          initial: ownOf(initial),
          trailing: ownOf(ended.metadata),
        });
      }, 10);
    });
  return Promise.all(cases.map(call));
}

const pythonCalls = `
import grpc, json, sys
address, path, cases = json.load(sys.stdin)
call = grpc.insecure_channel(address).unary_unary(path)
def own(metadata):
    return {k: v.hex() if isinstance(v, bytes) else v for k, v in metadata or [] if k.startswith("x-")}
for case in cases:
    try:
        body, done = call.with_call(bytes.fromhex(case["request"]), timeout=case["timeoutMs"] / 1000)
    except grpc.RpcError as error:
        body, done = b"", error
    print(json.dumps({
        "code": done.code().name, "message": done.details(), "body": body.hex(),
        "initial": own(done.initial_metadata()), "trailing": own(done.trailing_metadata()),
    }))
`;

async function byPython(port: number): Promise<Outcome[]> {
  const plain = cases.map((each) => ({
    request: requestOf(each).toString("hex"),
    timeoutMs: each.timeoutMs ?? 20_000,
  }));
  return runPython<Outcome>(pythonCalls, [`127.0.0.1:${port}`, path, plain]);
}

describe.each([
  ["grpc-js", byGrpcJs, true],
  ["Python's grpcio", byPython, hasPython],
] as const)("%s reads", (_, callAll, isThere) => {
  it.skipIf(!isThere)("every kind of reply as the service means it", async () => {
    const server = await startEngine({
      versions: ["h2"],
      services: [createServiceImplSpec<typeof InvestorService>(InvestorService, implementation)],
      gate: openGate(100, 10_000),
    });
    onTestFinished(() => server.destroy());
    const outcomes = await callAll(server.port);
    for (const [i, { name, id, outcome }] of cases.entries()) {
      const sent = toBinary(InvestorSchema, create(InvestorSchema, { id }));
      const body = outcome.code === "OK" ? Buffer.from(sent).toString("hex") : "";
      expect(outcomes[i], name).toMatchObject({ body, ...outcome });
    }
  });
});

const pythonOperations = `
import grpc, json, sys
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from google.protobuf.descriptor_pool import DescriptorPool
channel = grpc.insecure_channel(json.load(sys.stdin))
database = ProtoReflectionDescriptorDatabase(channel)
pool = DescriptorPool(database)
service = pool.FindServiceByName("investor.v1.InvestorService")
print(json.dumps(sorted(database.get_services())))
print(json.dumps([method.name for method in service.methods]))
print(json.dumps(pool.FindMessageTypeByName("google.rpc.ErrorInfo").full_name))
health = health_pb2_grpc.HealthStub(channel)
print(json.dumps(health.Check(health_pb2.HealthCheckRequest()).status))
try:
    health.Check(health_pb2.HealthCheckRequest(service="other"))
except grpc.RpcError as error:
    print(json.dumps(error.code().name))
watch = health.Watch(health_pb2.HealthCheckRequest())
print(json.dumps(next(watch).status))
watch.cancel()
print(json.dumps(next(health.Watch(health_pb2.HealthCheckRequest(service="other"))).status))
`;

it.skipIf(!hasPython)("Python's clients of reflection and health work unaided", async () => {
  const { grpcPort } = await startService();
  expect(await runPython(pythonOperations, `127.0.0.1:${grpcPort}`)).toEqual([
    ["grpc.health.v1.Health", "investor.v1.InvestorService"],
    ["CreateInvestor", "GetInvestor", "ListInvestors"],
    "google.rpc.ErrorInfo",
    1,
    "NOT_FOUND",
    1,
    3,
  ]);
});

it("a watch of health by grpc-js ends when the server drains, as one to begin anew", async () => {
  const health = createHealth([]);
  const server = await startEngine({
    versions: ["h2"],
    services: [],
    health: health.implementation,
    gate: openGate(1),
  });
  onTestFinished(() => server.destroy());
  const client = new Client(`127.0.0.1:${server.port}`, credentials.createInsecure());
  onTestFinished(() => client.close());
  const asItIs = (bytes: Buffer) => bytes;
  const watch = client.makeServerStreamRequest(
    "/grpc.health.v1.Health/Watch",
    asItIs,
    asItIs,
    Buffer.alloc(0),
  );
  const replies: string[] = [];
  watch.on("data", (reply: Buffer) => replies.push(reply.toString("hex")));
  await expect.poll(() => replies).toEqual(["0802"]);
  const ended = new Promise<ServiceError>((resolve) => watch.on("error", resolve));
  health.end();
  await server.drain();
  expect((await ended).code).toBe(status.UNAVAILABLE);
  await server.closed;
});
