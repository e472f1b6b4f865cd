import { createServer } from "node:net";
import type { Interceptor } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { status } from "@grpc/grpc-js";
import { v7, version } from "uuid";
import { describe, expect, it } from "vitest";
import { createInvestorClient } from "../client/src/connect.ts";
import type { CreateInvestorRequest } from "../gen/investor/v1/investor_pb.js";
import { errorOf, investorClients, overGrpc } from "./support/investor-clients.ts";
import { aNew } from "./support/records.ts";
import { startInProcess } from "./support/server.ts";
import { listen } from "./support/tcp.ts";

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

    const reason = "REQUEST_ID_REUSED";
    const reused = await errorOf(client.createInvestor({ ...request, city: "Elsewhere" }));
    expect(reused, name).toMatchObject({ code: status.ALREADY_EXISTS, reason });
    expect(reused.message).toMatch(/^ALREADY_EXISTS \(REQUEST_ID_REUSED\): [^()]+$/);
    const wrong = { ...aNew(), country: "USA", zipCode: "\0" };
    const invalid = await errorOf(client.createInvestor(wrong));
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
  const { port } = await startInProcess();
  const client = overGrpc(`localhost:${port}`);
  const ids: string[] = [];
  while (ids.length < 1_100) {
    const created = Array.from({ length: 100 }, () => client.createInvestor(aNew()));
    ids.push(...(await Promise.all(created)).map(({ id }) => id));
  }
  const listed: string[] = [];
  for await (const { id } of client.investors()) listed.push(id);
  expect(listed).toEqual(ids.toSorted());
});

describe("the client over each transport", () => {
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
    const { port } = await startInProcess();
    const client = overGrpc(`localhost:${port}`);
    if (isWarm) await client.listInvestors();
    const call = client.listInvestors();
    client.close();
    expect((await call).investors).toEqual([]);
    await expect(client.listInvestors()).rejects.toThrow("the client is closed");
  });

  it("takes limits however large, and refuses those that are none", async () => {
    const server = await startInProcess();
    const { MAX_SAFE_INTEGER, MAX_VALUE, POSITIVE_INFINITY } = Number;
    for (const client of Object.values(investorClients(server))) {
      for (const timeoutMs of [MAX_SAFE_INTEGER, MAX_VALUE, POSITIVE_INFINITY]) {
        for (const retries of [0, 1]) {
          expect((await client.listInvestors({}, { timeoutMs, retries })).investors).toEqual([]);
        }
      }
      for (const options of [{ timeoutMs: Number.NaN }, { retries: -1 }]) {
        await expect(client.listInvestors({}, options)).rejects.toThrow(RangeError);
      }
    }
  });
  it("gives up at the deadline of the call, or else that of the client", async () => {
    const port = await listen(createServer((socket) => socket.on("error", () => {})));
    const limit = { timeoutMs: 500 };
    const calls = [
      ...Object.values(investorClients({ port }, limit)).map((each) => each.listInvestors()),
      ...Object.values(investorClients({ port })).map((each) => each.listInvestors({}, limit)),
    ];
    for (const error of await Promise.all(calls.map(errorOf))) {
      expect(error).toMatchObject({ code: status.DEADLINE_EXCEEDED, reason: undefined });
    }
  });

  it("calls a wrong address as often as any, and says so", async () => {
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
