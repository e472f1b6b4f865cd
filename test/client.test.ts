import { writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { promisify } from "node:util";
import { create, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import { anyPack } from "@bufbuild/protobuf/wkt";
import type { Interceptor } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { type handleUnaryCall, Metadata, Server, ServerCredentials, status } from "@grpc/grpc-js";
import { v7, version } from "uuid";
import { describe, expect, it, onTestFinished } from "vitest";
import { createInvestorClient } from "../client/src/connect.ts";
import type { InvestorClient } from "../client/src/grpc.ts";
import { ErrorInfoSchema, RetryInfoSchema } from "../gen/google/rpc/error_details_pb.js";
import { StatusSchema } from "../gen/google/rpc/status_pb.js";
import type { CreateInvestorRequest } from "../gen/investor/v1/investor_pb.js";
import { temporaryFolder } from "./support/folder.ts";
import { errorOf, investorClients, overGrpc } from "./support/investor-clients.ts";
import { aNew } from "./support/records.ts";
import { startInProcess } from "./support/server.ts";
import { listen } from "./support/tcp.ts";

async function start(flags?: Record<string, string>) {
  const { port } = await startInProcess(flags);
  return overGrpc(`localhost:${port}`);
}

/** A server that handles GetInvestor, and knows nothing of the service: its address, and its calls so far. */
async function startStub(getInvestor: handleUnaryCall<Buffer, Buffer>) {
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
  const stub = { address: "", startedAt: [] as number[] };
  const handle: typeof getInvestor = (call, reply) => {
    stub.startedAt.push(performance.now());
    getInvestor(call, reply);
  };
  server.addService({ getInvestor: definition }, { getInvestor: handle });
  const bind = promisify(server.bindAsync.bind(server));
  stub.address = `127.0.0.1:${await bind("127.0.0.1:0", ServerCredentials.createInsecure())}`;
  return stub;
}

/** A stub whose calls fail. */
function startFailing(code: status, details?: Buffer) {
  const metadata = new Metadata();
  if (details) metadata.set("grpc-status-details-bin", details);
  return startStub((_, reply) => reply({ code, details: "out of order", metadata }));
}

function toStatus(details: MessageInitShape<typeof StatusSchema>["details"]): Buffer {
  return Buffer.from(toBinary(StatusSchema, create(StatusSchema, { details: details ?? [] })));
}

/** The details of errors that ask for a delay. */
const afterASecond = toStatus([
  anyPack(RetryInfoSchema, create(RetryInfoSchema, { retryDelay: { seconds: 1n } })),
]);
const afterADay = toStatus([
  anyPack(RetryInfoSchema, create(RetryInfoSchema, { retryDelay: { seconds: 86_400n } })),
]);

const broken = toStatus([
  { typeUrl: "type.googleapis.com/google.rpc.ErrorInfo", value: Uint8Array.of(0x0a, 0x20) },
]);

const get = (client: InvestorClient, options = {}) => client.getInvestor({ id: v7() }, options);

it("the client over each transport creates, replays, gets, lists, and says what is wrong", async () => {
  const server = await startInProcess();
  for (const [name, client] of Object.entries(investorClients(server))) {
    const request = { ...aNew(), requestId: v7() };
    const investor = await client.createInvestor(request);
    expect(investor, name).toMatchObject({ firstName: request.firstName, country: "gb" });
    expect(await client.createInvestor(request)).toEqual(investor);
    expect(await client.getInvestor({ id: investor.id })).toEqual(investor);
    const { investors } = await client.listInvestors({ pageSize: 1_000 });
    expect(investors).toContainEqual(investor);

    const reused = await errorOf(
      client.createInvestor({ ...aNew(), requestId: request.requestId }),
    );
    expect(reused, name).toMatchObject({
      code: status.ALREADY_EXISTS,
      reason: "REQUEST_ID_REUSED",
    });
    expect(reused.message).toMatch(/^ALREADY_EXISTS \(REQUEST_ID_REUSED\): [^()]+$/);
    const invalid = await errorOf(
      client.createInvestor({ ...aNew(), country: "USA", zipCode: "\0" }),
    );
    expect(invalid, name).toMatchObject({
      name: "InvestorError",
      message: `INVALID_ARGUMENT (INVALID_FIELDS): ${invalid.violations
        .map(({ field, description }) => `${field} ${description}`)
        .join("; ")}`,
      code: status.INVALID_ARGUMENT,
      codeName: "INVALID_ARGUMENT",
      retryDelayMs: undefined,
      violations: [
        { field: "zipCode", description: expect.any(String) },
        { field: "country", description: "must be two or three lower-case letters (a-z)" },
      ],
    });
    const id = v7();
    const missing = await errorOf(client.getInvestor({ id }));
    expect(missing).toMatchObject({ reason: "INVESTOR_NOT_FOUND", metadata: { id } });
    expect(missing.stack, name).toContain("client.test.ts");
  }
});

it("the client sends a request id of version 7, the same in each attempt, unless the caller does", async () => {
  const sent: string[] = [];
  const record: Interceptor = (next) => (request) => {
    sent.push(String((request.message as CreateInvestorRequest).requestId));
    return next(request);
  };
  const transport = createConnectTransport({
    baseUrl: "http://localhost:1",
    httpVersion: "1.1",
    interceptors: [record],
  });
  const client = createInvestorClient(transport, { retries: 1 });
  await errorOf(client.createInvestor(aNew()));
  expect(sent).toEqual([sent[0], sent[0]]);
  expect(version(sent[0] ?? "")).toBe(7);
  await errorOf(client.createInvestor({ ...aNew(), requestId: "" }, { retries: 0 }));
  expect(version(sent.at(-1) ?? "")).toBe(7);
  const requestId = v7();
  await errorOf(client.createInvestor({ ...aNew(), requestId }, { retries: 0 }));
  expect(sent.at(-1)).toBe(requestId);
});

it("the client yields all records, over pages of 1,000", async () => {
  const client = await start();
  const ids: string[] = [];
  while (ids.length < 1_100) {
    const created = Array.from({ length: 100 }, () => client.createInvestor(aNew()));
    ids.push(...(await Promise.all(created)).map(({ id }) => id));
  }
  const listed: string[] = [];
  for await (const { id } of client.investors()) listed.push(id);
  expect(listed).toEqual(ids.toSorted());
});

describe("the client over grpc-js", () => {
  it.each([
    ["ask for a delay", afterASecond, 1_000],
    ["are no google.rpc.Status", Buffer.from("no status"), undefined],
    ["hold a broken ErrorInfo", broken, undefined],
  ])("rejects with the error of a server whose details %s", async (_, details, retryDelayMs) => {
    const { address, startedAt } = await startFailing(status.INTERNAL, details);
    expect(await errorOf(get(overGrpc(address)))).toMatchObject({
      code: status.INTERNAL,
      message: "INTERNAL: out of order",
      reason: undefined,
      retryDelayMs,
    });
    expect(startedAt).toHaveLength(1);
  });

  it("sends the headers of a call, such as a token", async () => {
    const folder = temporaryFolder();
    const token = "a-token-of-32-printable-letters-";
    writeFileSync(`${folder}/tokens`, `tests ${token}\n`, { mode: 0o600 });
    const server = await startInProcess({ "--auth-tokens-file": `${folder}/tokens` });
    for (const [name, client] of Object.entries(investorClients(server))) {
      expect((await errorOf(client.listInvestors())).reason, name).toBe("CREDENTIALS_MISSING");
      const headers = { authorization: `Bearer ${token}` };
      expect((await client.listInvestors({}, { headers })).investors, name).toEqual([]);
    }
  });

  it("rejects what cannot be encoded, and sends nothing", async () => {
    const server = await startInProcess();
    // The first half of an emoji, as cutting text by its length leaves it.
    const half = "\u{1F600}".slice(0, 1);
    for (const client of Object.values(investorClients(server))) {
      for (const change of [{ firstName: `Ada${half}` }, { requestId: half }]) {
        const call = client.createInvestor({ ...aNew(), ...change });
        await expect(call).rejects.toThrow(/^cannot encode field .*: unpaired surrogate$/);
      }
      const call = client.listInvestors({ pageSize: 1.5 });
      await expect(call).rejects.toThrow(/^cannot encode field .*page_size/);
      expect((await client.listInvestors()).investors).toEqual([]);
    }
  });

  it.each([
    ["before there is a connection", false],
    ["on a connection", true],
  ])("finishes what is in flight when it is closed, and refuses more: %s", async (_, isWarm) => {
    const client = await start();
    if (isWarm) await client.listInvestors();
    const call = client.listInvestors();
    client.close();
    expect((await call).investors).toEqual([]);
    await expect(client.listInvestors()).rejects.toThrow("the client is closed");
  });

  it("takes limits however large, and refuses those that are none", async () => {
    const server = await startInProcess();
    for (const client of Object.values(investorClients(server))) {
      for (const timeoutMs of [
        Number.MAX_SAFE_INTEGER,
        Number.MAX_VALUE,
        Number.POSITIVE_INFINITY,
      ]) {
        for (const retries of [0, 1]) {
          expect((await client.listInvestors({}, { timeoutMs, retries })).investors).toEqual([]);
        }
      }
      for (const options of [{ timeoutMs: Number.NaN }, { retries: -1 }]) {
        await expect(client.listInvestors({}, options)).rejects.toThrow(RangeError);
      }
    }
  });
});

describe("the client repeats a call", () => {
  it("until it succeeds, after the delay that the service asks for", async () => {
    let failures = 2;
    const metadata = new Metadata();
    metadata.set("grpc-status-details-bin", afterASecond);
    const { address, startedAt } = await startStub((_, reply) => {
      failures -= 1;
      if (failures < 0) reply(null, Buffer.alloc(0));
      else reply({ code: status.UNAVAILABLE, details: "busy", metadata });
    });
    expect(await get(overGrpc(address))).toMatchObject({ id: "" });
    const [first = 0, second = 0, third = 0] = startedAt;
    expect(startedAt).toHaveLength(3);
    expect(second - first).toBeGreaterThan(990);
    expect(third - second).toBeGreaterThan(990);
  });

  it("in attempts that are shorter than its deadline, where the service says nothing", async () => {
    let isSilent = true;
    const { address, startedAt } = await startStub((_, reply) => {
      if (!isSilent) reply(null, Buffer.alloc(0));
      isSilent = false;
    });
    expect(await get(overGrpc(address), { timeoutMs: 10_000 })).toMatchObject({ id: "" });
    expect(startedAt).toHaveLength(2);
  });

  it("not at all with `retries: 0`, of the call or else of the client", async () => {
    const { address, startedAt } = await startFailing(status.UNAVAILABLE);
    const error = { code: status.UNAVAILABLE, message: "UNAVAILABLE: out of order" };
    expect(await errorOf(get(overGrpc(address), { retries: 0 }))).toMatchObject(error);
    expect(await errorOf(get(overGrpc(address, { retries: 0 })))).toMatchObject(error);
    expect(startedAt).toHaveLength(2);
  });

  it("not where its deadline ends before the next attempt", async () => {
    const { address, startedAt } = await startFailing(status.UNAVAILABLE, afterADay);
    const timeoutMs = 80_000_000;
    expect(await errorOf(get(overGrpc(address), { timeoutMs }))).toMatchObject({
      code: status.UNAVAILABLE,
      message: "UNAVAILABLE: out of order",
    });
    expect(startedAt).toHaveLength(1);
  });

  it("at most five hundred times more than others succeed", async () => {
    const overloaded = create(ErrorInfoSchema, { reason: "OVERLOADED" });
    const details = toStatus([anyPack(ErrorInfoSchema, overloaded)]);
    const { address, startedAt } = await startFailing(status.UNAVAILABLE, details);
    const client = overGrpc(address, { timeoutMs: 80_000_000 });
    const calls = Array.from({ length: 600 }, () => errorOf(get(client, { retries: 1 })));
    await Promise.all(calls);
    expect(startedAt).toHaveLength(1_100);
  });

  it("never after its signal has aborted, which ends the wait", async () => {
    const { address, startedAt } = await startFailing(status.UNAVAILABLE, afterADay);
    const client = overGrpc(address);
    const controller = new AbortController();
    const { signal } = controller;
    const call = errorOf(get(client, { signal, timeoutMs: 1_000_000_000 }));
    await expect.poll(() => startedAt).toHaveLength(1);
    controller.abort();
    expect(await call).toMatchObject({ code: status.CANCELLED, codeName: "CANCELLED" });
    expect((await errorOf(get(client, { signal }))).codeName).toBe("CANCELLED");
    expect(startedAt).toHaveLength(1);
  });

  it("within its deadline, or else that of the client, over each transport", async () => {
    const silent = await listen(createServer((socket) => socket.on("error", () => {})));
    const address = { port: silent };
    const withDefault = Object.values(investorClients(address, { timeoutMs: 500 }));
    const calls = [
      ...withDefault.map((client) => get(client)),
      ...Object.values(investorClients(address)).map((client) => get(client, { timeoutMs: 500 })),
    ];
    for (const error of await Promise.all(calls.map(errorOf))) {
      expect(error).toMatchObject({ code: status.DEADLINE_EXCEEDED, reason: undefined });
    }
  });

  it("to a wrong address as often as any, and says so", async () => {
    const nobody = { port: 1 };
    const clients = [...Object.values(investorClients(nobody)), overGrpc("no name")];
    // No deadline, so that a busy machine may take its time.
    const options = { timeoutMs: Number.POSITIVE_INFINITY, retries: 2 };
    const calls = clients.map((client) => errorOf(client.listInvestors({}, options)));
    for (const error of await Promise.all(calls)) {
      expect(error).toMatchObject({ code: status.UNAVAILABLE, reason: undefined });
      expect(error.message).toMatch(
        /^UNAVAILABLE: .*(ECONNREFUSED|resol).* \(after 3 attempts\)$/i,
      );
    }
  });
});
