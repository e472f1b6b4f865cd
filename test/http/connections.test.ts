import type { ClientHttp2Session } from "node:http2";
import { Socket } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { createServiceImplSpec } from "@connectrpc/connect";
import { pino } from "pino";
import { describe, expect, it, onTestFinished } from "vitest";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import type { Scope } from "../../src/auth/caller.ts";
import { createGate } from "../../src/calls/gate.ts";
import { createTelemetry } from "../../src/calls/telemetry.ts";
import { createConnections } from "../../src/http/connections.ts";
import { startEngine } from "../support/engine.ts";
import { openGate } from "../support/gate.ts";
import { frame, openCall, rawCall, rawConnection, replyOf } from "../support/raw-grpc.ts";
import { openTcp } from "../support/tcp.ts";

const list = "/investor.v1.InvestorService/ListInvestors";
const empty = frame(Buffer.alloc(0));

/** Serves empty lists on at most 32 connections, of which eight may be new. */
async function serve(gate = openGate(1_000)) {
  const methods = { listInvestors: () => ({ investors: [] }) };
  const services = [createServiceImplSpec<typeof InvestorService>(InvestorService, methods)];
  const { port, destroy } = await startEngine({
    ...{ versions: ["h2"], services, gate },
    ...{ maxConnections: 32, memoryBytes: () => Number.POSITIVE_INFINITY },
  });
  onTestFinished(destroy);
  return port;
}

/** A connection on which a call has run. */
async function openKnown(port: number) {
  const session = rawConnection(port);
  expect((await rawCall(session, list, empty)).status).toBe(0);
  return session;
}

it("at the limit, connections stay on which a call is being admitted", async () => {
  const log = pino({ level: "silent" });
  const limits = { maxInFlight: 1_000, requestTimeoutMs: 5_000 };
  let admitted = Promise.resolve();
  let asked = 0;
  const gate = createGate({
    ...{ ...limits, telemetry: createTelemetry(log), log },
    authenticate: async () => {
      asked += 1;
      await admitted;
      return { principal: "one", name: "one", scopes: new Set<Scope>(["investors:read"]) };
    },
  });
  const port = await serve(gate);
  const known = [];
  for (let i = 0; i < 32; i += 1) known.push(await openKnown(port));
  const { promise, resolve } = Promise.withResolvers<void>();
  admitted = promise;
  const [idlest, next] = known as [ClientHttp2Session, ClientHttp2Session];
  const reply = rawCall(idlest, list, empty);
  await expect.poll(() => asked).toBe(33);
  await openTcp(port);
  await expect.poll(() => next.destroyed).toBe(true);
  resolve();
  expect((await reply).status).toBe(0);
});

it("there is no usage of a connection that is not registered", () => {
  expect(createConnections(1).begin(new Socket(), false)).toBeUndefined();
});

describe("when memory is short", () => {
  it("connections on which a call has run stay, and others make room", async () => {
    const port = await serve();
    const known = [];
    for (let i = 0; i < 10; i += 1) known.push(await openKnown(port));
    const others: Socket[] = [];
    for (let i = 0; i < 20; i += 1) others.push(await openTcp(port));
    await expect
      .poll(() => others.map(({ closed }) => closed))
      .toEqual(others.map((_, i) => i < 11));
    for (const session of known) expect((await rawCall(session, list, empty)).status).toBe(0);
  });

  it("connections that keep much and make no call are closed", async () => {
    const port = await serve();
    const known = await openKnown(port);
    const sessions = Array.from({ length: 3 }, () => rawConnection(port));
    const unfinished = frame(Buffer.alloc(60_000)).subarray(0, 50_000);
    for (const session of sessions) {
      for (let i = 0; i < 30; i += 1) openCall(session, list).write(unfinished);
    }
    await expect.poll(() => sessions.filter(({ destroyed }) => !destroyed)).toHaveLength(0);
    expect((await rawCall(known, list, empty)).status).toBe(0);
  });

  it("connections that keep much are closed once no call has run on them for a while", async () => {
    const port = await serve();
    const known = await openKnown(port);
    const idle = [await openKnown(port), await openKnown(port)];
    await delay(300);
    const unfinished = frame(Buffer.alloc(60_000)).subarray(0, 50_000);
    for (const session of idle) {
      for (let i = 0; i < 30; i += 1) openCall(session, list).write(unfinished);
    }
    // What is admitted spares them for a moment; what then comes is looked at.
    await delay(300);
    const more = rawConnection(port);
    for (let i = 0; i < 30; i += 1) openCall(more, list).write(unfinished);
    await expect.poll(() => idle.filter(({ destroyed }) => !destroyed)).toHaveLength(0);
    expect((await rawCall(known, list, empty)).status).toBe(0);
  });

  it.each([
    ["at once", undefined],
    [
      "in a while",
      async () => {
        await delay(50);
        return { principal: "one", name: "one", scopes: new Set<Scope>(["investors:read"]) };
      },
    ],
  ])(
    "calls whose requests are there run first, if they are admitted %s",
    async (_, authenticate) => {
      const log = pino({ level: "silent" });
      const limits = { maxInFlight: 1_000, requestTimeoutMs: 5_000 };
      const gate = createGate({ ...limits, authenticate, telemetry: createTelemetry(log), log });
      const port = await serve(gate);
      const sessions = Array.from({ length: 3 }, () => rawConnection(port));
      const streams = sessions.flatMap((session) =>
        Array.from({ length: 100 }, () => openCall(session, list).end(empty)),
      );
      const replies = await Promise.all(streams.map(replyOf));
      expect(replies.filter(({ status }) => status === 0)).toHaveLength(300);
    },
  );
});
