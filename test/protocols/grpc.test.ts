import { once } from "node:events";
import { constants } from "node:http2";
import { setTimeout as delay } from "node:timers/promises";
import { deflateSync, gzipSync } from "node:zlib";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import {
  Code,
  ConnectError,
  createClient,
  createServiceImplSpec,
  type ServiceImpl,
} from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { status } from "@grpc/grpc-js";
import { pino } from "pino";
import { describe, expect, it, onTestFinished } from "vitest";
import {
  Health,
  HealthCheckResponse_ServingStatus as Serving,
} from "../../gen/grpc/health/v1/health_pb.js";
import {
  CreateInvestorRequestSchema,
  GetInvestorRequestSchema,
  InvestorSchema,
  InvestorService,
} from "../../gen/investor/v1/investor_pb.js";
import type { Gate } from "../../src/calls/gate.ts";
import type { Listener } from "../../src/http/listener.ts";
import { createHealth } from "../../src/operations/health.ts";
import { type EngineOptions, startEngine } from "../support/engine.ts";
import { failureOf } from "../support/errors.ts";
import { openGate, promptly } from "../support/gate.ts";
import { frame, openCall, rawCall, rawConnection, replyOf } from "../support/raw-grpc.ts";
import { aCreate } from "../support/records.ts";

const getPath = "/investor.v1.InvestorService/GetInvestor";
const createPath = "/investor.v1.InvestorService/CreateInvestor";
const echoed = create(InvestorSchema, { firstName: "Ada" });

type Implementation = Partial<ServiceImpl<typeof InvestorService>>;

async function serve(
  implementation: Implementation,
  options: Partial<EngineOptions> = {},
  requestTimeoutMs = 5_000,
) {
  const logged: string[] = [];
  const log = pino({ level: "error" }, { write: (line) => logged.push(line) });
  const gate = openGate(2, requestTimeoutMs, log);
  const health = createHealth([InvestorService.typeName]);
  const server = await startEngine({
    versions: ["h2"],
    services: [createServiceImplSpec<typeof InvestorService>(InvestorService, implementation)],
    health: health.implementation,
    gate,
    log,
    ...options,
  });
  onTestFinished(() => server.destroy());
  const transport = createGrpcTransport({ baseUrl: `http://127.0.0.1:${server.port}` });
  return {
    server,
    health,
    gate,
    logged,
    transport,
    client: createClient(InvestorService, transport),
  };
}

/** Takes every slot by calls whose bodies do not come. */
async function fill(server: Listener, gate: Gate): Promise<void> {
  const session = rawConnection(server.port);
  openCall(session, getPath);
  openCall(session, getPath);
  await expect.poll(() => gate.inFlight).toBe(2);
}

const echo: Implementation = {
  createInvestor: ({ firstName = "" }) => ({ firstName }),
  getInvestor: ({ id }) => ({ id }),
};

describe("the gRPC transport", () => {
  it("carries headers, trailers and the deadline to the handler and back", async () => {
    let remaining: number | undefined;
    const { client } = await serve({
      getInvestor(_, context) {
        remaining = context.timeoutMs();
        context.responseHeader.set("x-header", context.requestHeader.get("x-ask") ?? "");
        context.responseHeader.set("x-bytes-bin", context.requestHeader.get("x-ask-bin") ?? "");
        context.responseTrailer.set("x-trailer", "last");
        return {};
      },
    });
    let header = new Headers();
    let trailer = new Headers();
    await client.getInvestor(
      {},
      {
        headers: { "x-ask": "question", "x-ask-bin": "AQID" },
        timeoutMs: 3_000,
        onHeader: (h) => {
          header = h;
        },
        onTrailer: (t) => {
          trailer = t;
        },
      },
    );
    expect(header.get("x-header")).toBe("question");
    expect(header.get("x-bytes-bin")).toBe("AQID");
    expect(trailer.get("x-trailer")).toBe("last");
    expect(remaining).toBeGreaterThan(1_000);
    expect(remaining).toBeLessThanOrEqual(3_000);
  });

  it("keeps the code, the message and the metadata of an error that the service means", async () => {
    const { client, logged } = await serve({
      getInvestor() {
        throw new ConnectError("50 % of „this“", Code.FailedPrecondition, { "x-why": "because" });
      },
    });
    const error = await client.getInvestor({}).catch((reason) => ConnectError.from(reason));
    expect(error).toMatchObject({
      code: Code.FailedPrecondition,
      rawMessage: "50 % of „this“",
    });
    expect((error as ConnectError).metadata.get("x-why")).toBe("because");
    expect(logged).toEqual([]);
  });

  it("turns any other error into INTERNAL with an id, and logs it under that id", async () => {
    const { client, logged } = await serve({
      getInvestor() {
        throw new TypeError("password=hunter2");
      },
    });
    const failure = await failureOf(client.getInvestor({}));
    expect(failure).toMatchObject({ code: "Internal", reason: "INTERNAL" });
    expect(failure.message).not.toContain("hunter2");
    const id = failure.metadata?.id ?? "none";
    expect(failure.message).toContain(id);
    expect(logged).toHaveLength(1);
    expect(logged[0]).toContain(id);
    expect(logged[0]).toContain("hunter2");
  });

  it("aborts the signal of a handler whose caller leaves", async () => {
    const started = Promise.withResolvers<void>();
    const aborted = Promise.withResolvers<unknown>();
    const { client } = await serve({
      getInvestor: (_, { signal }) =>
        new Promise((_, reject) => {
          signal.addEventListener("abort", () => {
            aborted.resolve(signal.reason);
            reject(signal.reason);
          });
          started.resolve();
        }),
    });
    const controller = new AbortController();
    const call = client.getInvestor({}, { signal: controller.signal });
    await started.promise;
    controller.abort();
    await expect(call).rejects.toMatchObject({ code: Code.Canceled });
    expect(await aborted.promise).toMatchObject({ code: Code.Canceled });
  });

  it("ends a handler that outlasts the server's limit", async () => {
    const { client } = await serve(
      {
        getInvestor: (_, { signal }) =>
          new Promise((_, reject) => {
            signal.addEventListener("abort", () => reject(signal.reason));
          }),
      },
      {},
      100,
    );
    await expect(client.getInvestor({})).rejects.toMatchObject({ code: Code.DeadlineExceeded });
  });

  it.each([
    ["bytes that are no message", Buffer.from([0xff, 0xff, 0xff])],
    ["a field that ends early", Buffer.from([0x0a, 0x05, 0x61])],
    ["invalid UTF-8", Buffer.from([0x0a, 0x02, 0xc3, 0x28])],
    ["a field of another wire type", Buffer.from([0x0c])],
  ])("refuses %s as malformed", async (_, message) => {
    const { server } = await serve(echo);
    const answer = await rawCall(rawConnection(server.port), getPath, frame(message));
    expect(answer).toMatchObject({
      status: status.INVALID_ARGUMENT,
      reason: "MALFORMED_REQUEST",
    });
  });

  it("repeats no long name of a member that it does not know", async () => {
    const { server } = await serve(echo);
    const session = rawConnection(server.port);
    const json = { "content-type": "application/grpc+json" };
    for (const name of ["short", "a".repeat(60_000)]) {
      const body = frame(Buffer.from(JSON.stringify({ [name]: 1 })));
      const answer = await rawCall(session, getPath, body, json);
      expect(answer).toMatchObject({
        status: status.INVALID_ARGUMENT,
        reason: "MALFORMED_REQUEST",
      });
      expect(answer.message.includes(name)).toBe(name === "short");
    }
  });

  it("takes fields that it does not know", async () => {
    const { server } = await serve(echo);
    const message = Buffer.from([0xfa, 0x3f, 0x01, 0x61, 0x0a, 0x01, 0x62]);
    const answer = await rawCall(rawConnection(server.port), getPath, frame(message));
    expect(answer.status).toBe(status.OK);
    expect(fromBinary(InvestorSchema, answer.body.subarray(5)).id).toBe("b");
  });

  it("takes gzip and refuses a compression that it does not offer", async () => {
    const { server } = await serve(echo);
    const session = rawConnection(server.port);
    const message = toBinary(
      GetInvestorRequestSchema,
      create(GetInvestorRequestSchema, { id: "a" }),
    );
    const zipped = await rawCall(session, getPath, frame(gzipSync(message), true), {
      "grpc-encoding": "gzip",
    });
    expect(zipped.status).toBe(status.OK);
    const unknown = await rawCall(session, getPath, frame(deflateSync(message), true), {
      "grpc-encoding": "zstd",
    });
    expect(unknown.status).toBe(status.UNIMPLEMENTED);
    const broken = await rawCall(session, getPath, frame(message, true), {
      "grpc-encoding": "gzip",
    });
    expect(broken).toMatchObject({
      status: status.INVALID_ARGUMENT,
      reason: "MALFORMED_REQUEST",
    });
  });

  it("refuses a message that is too large, also once it is unpacked", async () => {
    const { server } = await serve(echo);
    const session = rawConnection(server.port);
    const large = toBinary(
      CreateInvestorRequestSchema,
      create(CreateInvestorRequestSchema, aCreate({ firstName: "x".repeat(70_000) })),
    );
    expect((await rawCall(session, createPath, frame(large))).status).toBe(
      status.RESOURCE_EXHAUSTED,
    );
    const bomb = gzipSync(Buffer.alloc(50_000_000));
    const answer = await rawCall(session, createPath, frame(bomb, true), {
      "grpc-encoding": "gzip",
    });
    expect(answer.status).toBe(status.RESOURCE_EXHAUSTED);
  });

  it("replies UNIMPLEMENTED to an unknown method, and to one message too many or too few", async () => {
    const { server } = await serve(echo);
    const session = rawConnection(server.port);
    const message = frame(Buffer.alloc(0));
    const twice = Buffer.concat([message, message]);
    for (const [path, body] of [
      ["/investor.v1.InvestorService/DeleteInvestor", message],
      ["/nothing", message],
      [getPath, twice],
      [getPath, Buffer.alloc(0)],
    ] as const) {
      expect((await rawCall(session, path, body)).status, path).toBe(status.UNIMPLEMENTED);
    }
  });

  it.each(["100-continue", "100-Continue"])(
    "asks for the body on Expect: %s",
    async (expectation) => {
      const { server } = await serve(echo);
      const stream = openCall(rawConnection(server.port), getPath, { expect: expectation });
      await once(stream, "continue");
      stream.end(frame(Buffer.alloc(0)));
      expect((await replyOf(stream)).status).toBe(0);
    },
  );

  it("closes a stream whose request is not complete in time", async () => {
    const { server, gate } = await serve(echo, {}, 200);
    const session = rawConnection(server.port);
    const stream = openCall(session, getPath);
    stream.write(frame(Buffer.alloc(100)).subarray(0, 20));
    const answer = await replyOf(stream);
    expect(answer.status).toBe(status.DEADLINE_EXCEEDED);
    expect(gate.inFlight).toBe(0);
  });

  it("refuses calls past the limit at once, and takes them again when there is room", async () => {
    const release = Promise.withResolvers<void>();
    const { client, gate } = await serve({
      getInvestor: async () => {
        await release.promise;
        return echoed;
      },
    });
    const inside = [client.getInvestor({}), client.getInvestor({})];
    await expect.poll(() => gate.inFlight).toBe(2);
    const start = performance.now();
    expect(await failureOf(client.getInvestor({}))).toMatchObject({
      code: "Unavailable",
      reason: "OVERLOADED",
      hasRetryDelay: true,
    });
    expect(performance.now() - start).toBeLessThan(1_000);
    release.resolve();
    await Promise.all(inside);
    await gate.whenEmpty();
    expect((await client.getInvestor({})).firstName).toBe("Ada");
  });

  it("refuses a call past the limit before it has read the body", async () => {
    const { server, gate } = await serve(echo);
    await fill(server, gate);
    const stream = openCall(rawConnection(server.port), getPath);
    const answer = await replyOf(stream);
    expect(answer).toMatchObject({ status: status.UNAVAILABLE, reason: "OVERLOADED" });
  });

  it.each([
    ["of the common form", {}],
    ["of another form", { "grpc-encoding": "gzip" }],
  ])(
    "refuses a call %s in one frame, and asks for no more of it without an error",
    async (...of) => {
      const [, form] = of;
      const { server, gate } = await serve(echo);
      await fill(server, gate);
      const stream = openCall(rawConnection(server.port), getPath, form);
      const [headers, flags] = await once(stream, "response");
      expect(headers).toMatchObject({ ":status": 200, "grpc-status": "14" });
      expect(flags & constants.NGHTTP2_FLAG_END_STREAM).not.toBe(0);
      await once(stream, "close");
      expect(stream.rstCode).toBe(constants.NGHTTP2_NO_ERROR);
    },
  );

  it("encodes messages and bytes no more than the protocol asks", async () => {
    const { server } = await serve({
      getInvestor(_, { responseTrailer }) {
        responseTrailer.set("x-bytes-bin", "AQ==");
        throw new ConnectError("50 % of „this“: ~100\n", Code.FailedPrecondition);
      },
    });
    const stream = openCall(rawConnection(server.port), getPath);
    stream.end(frame(Buffer.alloc(0)));
    const [headers] = await once(stream, "response");
    expect(headers).toMatchObject({
      "grpc-message": "50 %25 of %E2%80%9Ethis%E2%80%9C: ~100%0A",
      "x-bytes-bin": "AQ",
    });
  });

  it("holds the slot of a call whose caller is gone until its stream has closed", async () => {
    const { server, gate } = await serve(echo);
    const session = rawConnection(server.port);
    openCall(session, getPath);
    await expect.poll(() => gate.inFlight).toBe(1);
    session.destroy();
    await expect.poll(() => gate.inFlight, promptly).toBe(0);
  });

  it("lets a connection open 128 streams and no more", async () => {
    const { server } = await serve(echo);
    const session = rawConnection(server.port);
    await once(session, "remoteSettings");
    expect(session.remoteSettings.maxConcurrentStreams).toBe(128);
  });

  it("asks clients to connect anew after the age set", async () => {
    const { server } = await serve(echo, { maxConnectionAgeMs: 200 });
    const session = rawConnection(server.port);
    await once(session, "goaway");
  });
});

describe("health", () => {
  it("replies for the server and each service, and NOT_FOUND for others", async () => {
    const { health: state, transport } = await serve(echo);
    const health = createClient(Health, transport);
    for (const service of ["", "investor.v1.InvestorService"]) {
      expect((await health.check({ service })).status).toBe(Serving.NOT_SERVING);
    }
    state.setServing(true);
    expect((await health.check({})).status).toBe(Serving.SERVING);
    const { statuses } = await health.list({});
    expect(Object.keys(statuses)).toEqual(["", "investor.v1.InvestorService"]);
    await expect(health.check({ service: "other" })).rejects.toMatchObject({ code: Code.NotFound });
  });

  it("tells a watcher of every change", async () => {
    const { health, transport } = await serve(echo);
    const seen: Serving[] = [];
    const controller = new AbortController();
    const watching = (async () => {
      const updates = createClient(Health, transport).watch({}, { signal: controller.signal });
      for await (const update of updates) seen.push(update.status);
    })().catch(() => {});
    await expect.poll(() => seen).toEqual([Serving.NOT_SERVING]);
    health.setServing(true);
    await expect.poll(() => seen).toEqual([Serving.NOT_SERVING, Serving.SERVING]);
    controller.abort();
    await watching;
  });

  it("is open when the service has no room", async () => {
    const { server, gate, transport } = await serve(echo);
    await fill(server, gate);
    await createClient(Health, transport).check({});
  });
});

describe("the end of the gRPC transport", () => {
  it("lets calls in flight finish, and takes no more", async () => {
    const { server, client, gate } = await serve({
      getInvestor: async () => {
        await delay(300);
        return echoed;
      },
    });
    const inside = client.getInvestor({});
    await expect.poll(() => gate.inFlight).toBe(1);
    const drained = server.drain();
    expect((await inside).firstName).toBe("Ada");
    await drained;
    await server.closed;
    await expect(client.getInvestor({})).rejects.toMatchObject({ code: Code.Unavailable });
  });

  it("says GOAWAY with the last call that it serves, and serves that", async () => {
    const { server, gate } = await serve(echo);
    const session = rawConnection(server.port);
    const last: number[] = [];
    session.on("goaway", (_, lastStreamId) => last.push(lastStreamId));
    const stream = openCall(session, getPath);
    await expect.poll(() => gate.inFlight).toBe(1);
    await server.drain();
    await expect.poll(() => last).toEqual([stream.id]);
    stream.end(frame(Buffer.alloc(0)));
    expect((await replyOf(stream)).status).toBe(status.OK);
    await server.closed;
    expect(new Set(last)).toEqual(new Set([stream.id]));
  });

  it("closes the connection that was idle for longest when there are too many", async () => {
    const { server, gate } = await serve(echo, { maxConnections: 2 });
    const [busy, idle] = [rawConnection(server.port), rawConnection(server.port)];
    openCall(busy, getPath);
    await expect.poll(() => gate.inFlight).toBe(1);
    await expect.poll(() => idle.remoteSettings.maxConcurrentStreams).toBe(128);
    const newest = rawConnection(server.port);
    await once(idle, "close");
    const reply = await rawCall(newest, getPath, frame(Buffer.alloc(0)));
    expect(reply.status).toBe(status.OK);
    expect(busy.destroyed).toBe(false);
  });

  it("says in plain words that a port is taken", async () => {
    const { server } = await serve(echo);
    await expect(serve(echo, { port: server.port })).rejects.toThrow(
      `cannot listen on 127.0.0.1:${server.port}`,
    );
  });
});
