import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { createServer } from "node:net";
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
import { lockDatabase, startService } from "./support/service.ts";

function connect(address: string, options?: InvestorClientOptions) {
  const client = createInvestorClient(address, credentials.createInsecure(), options);
  onTestFinished(() => client.close());
  return client;
}

async function start(env?: NodeJS.ProcessEnv) {
  const service = await startService(env);
  return { service, client: connect(`localhost:${service.grpcPort}`) };
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

/** A google.rpc.Status whose ErrorInfo ends in the middle. */
function brokenDetails(): Buffer {
  const typeUrl = "type.googleapis.com/google.rpc.ErrorInfo";
  const details = [{ typeUrl, value: Uint8Array.of(0x0a, 0x20) }];
  return Buffer.from(toBinary(StatusSchema, create(StatusSchema, { details })));
}

/** The address of a port that takes connections and says nothing. */
async function silentAddress(): Promise<string> {
  const server = createServer((socket) => socket.on("error", () => {}));
  onTestFinished(() => {
    server.close();
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  const address = server.address();
  return `127.0.0.1:${typeof address === "object" && address?.port}`;
}

describe("the client for grpc-js", () => {
  it("creates, replays, gets and lists", async () => {
    const { client } = await start();
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
    const { client } = await start();
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
    const { client } = await start();
    const id = v7();
    expect(await errorOf(client.getInvestor({ id }))).toMatchObject({
      code: status.NOT_FOUND,
      reason: "INVESTOR_NOT_FOUND",
      metadata: { id },
      violations: [],
    });
    const requestId = v7();
    await client.createInvestor(aCreate({ requestId }));
    expect(await errorOf(client.createInvestor(aCreate({ requestId })))).toMatchObject({
      code: status.ALREADY_EXISTS,
      reason: "REQUEST_ID_REUSED",
    });
  });

  it("rejects a refused call with the delay after which to repeat it", async () => {
    const { service, client } = await start({ MAX_IN_FLIGHT: "1" });
    const release = lockDatabase(service);
    const first = client.createInvestor(aCreate());
    const refused = await errorOf(
      Promise.all(Array.from({ length: 4 }, () => client.createInvestor(aCreate()))),
    );
    expect(refused).toMatchObject({
      code: status.UNAVAILABLE,
      reason: "OVERLOADED",
      retryDelayMs: 1_000,
    });
    release();
    await first;
  });

  it("sends the metadata of a call, such as a token", async () => {
    const folder = temporaryFolder();
    const token = "a-token-of-32-printable-letters-";
    writeFileSync(`${folder}/tokens`, `tests ${token}\n`, { mode: 0o600 });
    const { client } = await start({ AUTH_TOKENS_FILE: `${folder}/tokens` });
    expect(await errorOf(client.listInvestors({}))).toMatchObject({
      code: status.UNAUTHENTICATED,
      reason: "CREDENTIALS_MISSING",
    });
    const metadata = new Metadata();
    metadata.set("authorization", `Bearer ${token}`);
    expect((await client.listInvestors({}, { metadata })).investors).toEqual([]);
  });

  it("ends a call at its deadline, or else at that of the client", async () => {
    const address = await silentAddress();
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
    const client = connect(await silentAddress());
    const call = (signal: AbortSignal) => errorOf(client.getInvestor({ id: v7() }, { signal }));
    const controller = new AbortController();
    const running = call(controller.signal);
    setTimeout(() => controller.abort(), 50);
    expect(await running).toMatchObject({ code: status.CANCELLED });
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

  it.each([
    ["are no google.rpc.Status", Buffer.from("no status")],
    ["hold a broken ErrorInfo", brokenDetails()],
  ])("rejects with the code and message of an error whose details %s", async (_, details) => {
    const server = new Server();
    onTestFinished(() => server.forceShutdown());
    const metadata = new Metadata();
    metadata.set("grpc-status-details-bin", details);
    const refuse: handleUnaryCall<Buffer, Buffer> = (_, reply) =>
      reply({ code: status.INTERNAL, details: "out of order", metadata });
    const asIs = (bytes: Buffer) => bytes;
    const getInvestor = {
      path: "/investor.v1.InvestorService/GetInvestor",
      requestStream: false,
      responseStream: false,
      requestSerialize: asIs,
      requestDeserialize: asIs,
      responseSerialize: asIs,
      responseDeserialize: asIs,
    };
    server.addService({ getInvestor }, { getInvestor: refuse });
    const port = await new Promise<number>((resolve, reject) =>
      server.bindAsync("127.0.0.1:0", ServerCredentials.createInsecure(), (error, port) =>
        error ? reject(error) : resolve(port),
      ),
    );
    expect(await errorOf(connect(`127.0.0.1:${port}`).getInvestor({ id: v7() }))).toMatchObject({
      code: status.INTERNAL,
      message: "out of order",
      reason: undefined,
    });
  });

  it("rejects what cannot be a request, and sends nothing", async () => {
    const call = connect("127.0.0.1:1").listInvestors({ pageSize: 1.5 });
    await expect(call).rejects.toThrow(/^cannot encode field .*page_size/);
  });

  it("rejects text that UTF-8 cannot encode, and stores nothing", async () => {
    const { client } = await start();
    // The first half of an emoji, as cutting text by its length leaves it.
    const half = "\u{1F600}".slice(0, 1);
    for (const change of [{ firstName: `Ada${half}` }, { requestId: half }]) {
      const call = client.createInvestor(aCreate(change));
      await expect(call).rejects.toThrow(/^cannot encode field .*: unpaired surrogate$/);
    }
    await expect(client.getInvestor({ id: half })).rejects.toThrow("unpaired surrogate");
    const metadata = new Metadata();
    expect(() => metadata.set("authorization", `Bearer ${half}`)).toThrow("illegal characters");
    expect((await client.listInvestors({})).investors).toEqual([]);
  });

  it.each([
    ["before there is a connection", false],
    ["on a connection", true],
  ])("finishes what is in flight when it is closed, and refuses more: %s", async (_, isWarm) => {
    const service = await startService();
    const client = connect(`127.0.0.1:${service.grpcPort}`);
    if (isWarm) await client.listInvestors({});
    const call = client.listInvestors({});
    client.close();
    expect((await call).investors).toEqual([]);
    await expect(client.listInvestors({})).rejects.toThrow("the client is closed");
  });

  it("takes a timeout however long, and refuses one that is no number", async () => {
    const service = await startService();
    const client = connect(`127.0.0.1:${service.grpcPort}`);
    for (const timeoutMs of [Number.MAX_SAFE_INTEGER, Number.MAX_VALUE, Number.POSITIVE_INFINITY]) {
      expect((await client.listInvestors({}, { timeoutMs })).investors).toEqual([]);
    }
    const call = client.listInvestors({}, { timeoutMs: Number.NaN });
    await expect(call).rejects.toThrow(RangeError);
  });
});
