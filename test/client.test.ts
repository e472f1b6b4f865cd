import { writeFileSync } from "node:fs";
import { promisify } from "node:util";
import { create, toBinary } from "@bufbuild/protobuf";
import {
  credentials,
  type handleUnaryCall,
  Metadata,
  Server,
  ServerCredentials,
  status,
} from "@grpc/grpc-js";
import { v7 } from "uuid";
import { describe, expect, it, onTestFinished } from "vitest";
import {
  createInvestorClient,
  type InvestorClientOptions,
  InvestorError,
} from "../client/src/grpc.ts";
import { StatusSchema } from "../gen/google/rpc/status_pb.js";
import { temporaryFolder } from "./support/folder.ts";
import { aCreate } from "./support/records.ts";
import { startInProcess } from "./support/server.ts";

function connect(address: string, options?: InvestorClientOptions) {
  const client = createInvestorClient(address, credentials.createInsecure(), options);
  onTestFinished(() => client.close());
  return client;
}

async function start(flags?: Record<string, string>) {
  const { grpcPort } = await startInProcess(flags);
  return connect(`localhost:${grpcPort}`);
}

/** The error of a call that must fail. */
async function errorOf(call: Promise<unknown>): Promise<InvestorError> {
  const error = await call.then(
    () => new Error("the call succeeded"),
    (reason) => reason,
  );
  expect(error).toBeInstanceOf(InvestorError);
  return error;
}

/** The address of a server that handles GetInvestor, and knows nothing of the service. */
async function startStub(getInvestor: handleUnaryCall<Buffer, Buffer>): Promise<string> {
  const server = new Server();
  onTestFinished(() => server.forceShutdown());
  const asIs = (bytes: Buffer) => bytes;
  const definition = {
    path: "/investor.v1.InvestorService/GetInvestor",
    requestStream: false,
    responseStream: false,
    requestSerialize: asIs,
    requestDeserialize: asIs,
    responseSerialize: asIs,
    responseDeserialize: asIs,
  };
  server.addService({ getInvestor: definition }, { getInvestor });
  const bind = promisify(server.bindAsync.bind(server));
  return `127.0.0.1:${await bind("127.0.0.1:0", ServerCredentials.createInsecure())}`;
}

/** The bytes of a google.rpc.Status with one detail. */
function statusWith(name: string, value: Uint8Array): Buffer {
  const details = [{ typeUrl: `type.googleapis.com/google.rpc.${name}`, value }];
  return Buffer.from(toBinary(StatusSchema, create(StatusSchema, { details })));
}

describe("the client for grpc-js", () => {
  it("creates, replays, gets and lists", async () => {
    const client = await start();
    const request = aCreate({ requestId: v7() });
    const investor = await client.createInvestor(request);
    expect(investor).toMatchObject({ firstName: request.firstName, country: "gb" });
    expect(await client.createInvestor(request)).toEqual(investor);
    expect(await client.getInvestor({ id: investor.id })).toEqual(investor);
    expect(await client.listInvestors({ pageSize: 1 })).toMatchObject({
      investors: [investor],
      nextPageToken: "",
    });
  });

  it("rejects with the fields that break a rule", async () => {
    const client = await start();
    const error = await errorOf(client.createInvestor(aCreate({ country: "USA", type: 0 })));
    expect(error).toMatchObject({
      name: "InvestorError",
      message: "invalid: type, country",
      code: status.INVALID_ARGUMENT,
      reason: "INVALID_FIELDS",
      retryDelayMs: undefined,
      violations: [
        { field: "type", description: "must be individual or institution" },
        { field: "country", description: "must be two or three lower-case letters (a-z)" },
      ],
    });
  });

  it("rejects with the reason and its metadata", async () => {
    const client = await start();
    const id = v7();
    expect(await errorOf(client.getInvestor({ id }))).toMatchObject({
      code: status.NOT_FOUND,
      reason: "INVESTOR_NOT_FOUND",
      metadata: { id },
      violations: [],
    });
  });

  it.each([
    ["ask for a delay", statusWith("RetryInfo", Uint8Array.of(0x0a, 0x02, 0x08, 0x01)), 1_000],
    ["are no google.rpc.Status", Buffer.from("no status"), undefined],
    ["hold a broken ErrorInfo", statusWith("ErrorInfo", Uint8Array.of(0x0a, 0x20)), undefined],
  ])("rejects with the error of a server whose details %s", async (_, details, retryDelayMs) => {
    const metadata = new Metadata();
    metadata.set("grpc-status-details-bin", details);
    const address = await startStub((_, reply) =>
      reply({ code: status.INTERNAL, details: "out of order", metadata }),
    );
    expect(await errorOf(connect(address).getInvestor({ id: v7() }))).toMatchObject({
      code: status.INTERNAL,
      message: "out of order",
      reason: undefined,
      retryDelayMs,
    });
  });

  it("sends the metadata of a call, such as a token", async () => {
    const folder = temporaryFolder();
    const token = "a-token-of-32-printable-letters-";
    writeFileSync(`${folder}/tokens`, `tests ${token}\n`, { mode: 0o600 });
    const client = await start({ "--auth-tokens-file": `${folder}/tokens` });
    expect(await errorOf(client.listInvestors({}))).toMatchObject({
      code: status.UNAUTHENTICATED,
      reason: "CREDENTIALS_MISSING",
    });
    const metadata = new Metadata();
    metadata.set("authorization", `Bearer ${token}`);
    expect((await client.listInvestors({}, { metadata })).investors).toEqual([]);
  });

  it("ends a call at its deadline, or else at that of the client", async () => {
    const address = await startStub(() => {});
    const withOwn = connect(address).getInvestor({ id: v7() }, { timeoutMs: 100 });
    const withDefault = connect(address, { timeoutMs: 100 }).getInvestor({ id: v7() });
    for (const call of [withOwn, withDefault]) {
      expect(await errorOf(call)).toMatchObject({
        code: status.DEADLINE_EXCEEDED,
        reason: undefined,
        metadata: {},
        violations: [],
      });
    }
  });

  it("cancels a call by its signal, before and while it runs", async () => {
    const controller = new AbortController();
    const client = connect(await startStub(() => controller.abort()));
    const call = (signal: AbortSignal) => errorOf(client.getInvestor({ id: v7() }, { signal }));
    expect(await call(controller.signal)).toMatchObject({ code: status.CANCELLED });
    expect(await call(AbortSignal.abort())).toMatchObject({ code: status.CANCELLED });
  });

  it.each([
    ["where nobody listens", "127.0.0.1:1"],
    ["that is no name", "no name"],
  ])("rejects with UNAVAILABLE at an address %s", async (_, address) => {
    expect(await errorOf(connect(address).listInvestors({}))).toMatchObject({
      code: status.UNAVAILABLE,
      reason: undefined,
      message: expect.stringMatching(/./),
    });
  });

  it("rejects what cannot be encoded, and sends nothing", async () => {
    const client = await start();
    // The first half of an emoji, as cutting text by its length leaves it.
    const half = "\u{1F600}".slice(0, 1);
    for (const change of [{ firstName: `Ada${half}` }, { requestId: half }]) {
      const call = client.createInvestor(aCreate(change));
      await expect(call).rejects.toThrow(/^cannot encode field .*: unpaired surrogate$/);
    }
    const call = client.listInvestors({ pageSize: 1.5 });
    await expect(call).rejects.toThrow(/^cannot encode field .*page_size/);
    expect((await client.listInvestors({})).investors).toEqual([]);
  });

  it.each([
    ["before there is a connection", false],
    ["on a connection", true],
  ])("finishes what is in flight when it is closed, and refuses more: %s", async (_, isWarm) => {
    const client = await start();
    if (isWarm) await client.listInvestors({});
    const call = client.listInvestors({});
    client.close();
    expect((await call).investors).toEqual([]);
    await expect(client.listInvestors({})).rejects.toThrow("the client is closed");
  });

  it("takes a timeout however long, and refuses one that is no number", async () => {
    const client = await start();
    for (const timeoutMs of [Number.MAX_SAFE_INTEGER, Number.MAX_VALUE, Number.POSITIVE_INFINITY]) {
      expect((await client.listInvestors({}, { timeoutMs })).investors).toEqual([]);
    }
    const call = client.listInvestors({}, { timeoutMs: Number.NaN });
    await expect(call).rejects.toThrow(RangeError);
  });
});
