// What the client makes of calls that fail on the way, are cancelled or held up.
import { getEventListeners } from "node:events";
import { createServer, type RequestListener } from "node:http";
import { createServer as createHttp2Server } from "node:http2";
import { create, toBinary } from "@bufbuild/protobuf";
import { Code, ConnectError, createRouterTransport } from "@connectrpc/connect";
import { createConnectTransport, createGrpcTransport } from "@connectrpc/connect-node";
import { credentials } from "@grpc/grpc-js";
import { v7 } from "uuid";
import { describe, expect, it, onTestFinished, vi } from "vitest";
import * as connect from "../client/src/connect.ts";
import * as grpc from "../client/src/grpc.ts";
import { StatusSchema } from "../gen/google/rpc/status_pb.js";
import { InvestorService } from "../gen/investor/v1/investor_pb.js";
import { createAuthority, writeServerFlags } from "./support/certificates.ts";
import { temporaryFolder } from "./support/folder.ts";
import { errorOf, investorClients } from "./support/investor-clients.ts";
import { aNew } from "./support/records.ts";
import { startInProcess } from "./support/server.ts";
import { listen } from "./support/tcp.ts";

const get = (client: grpc.InvestorClient, options = {}) =>
  client.getInvestor({ id: v7() }, options);

/** Serves HTTP/2 and HTTP/1.1 by one listener, as a proxy would: the client over each transport. */
async function startProxy(handle: RequestListener = () => {}) {
  const proxy = { clients: {} as ReturnType<typeof investorClients>, requests: 0 };
  const listener: RequestListener = (req, res) => {
    proxy.requests += 1;
    handle(req, res);
  };
  const http2 = createHttp2Server(listener as Parameters<typeof createHttp2Server>[0]);
  const port = await listen(http2);
  proxy.clients = investorClients({ port, http1Port: await listen(createServer(listener)) });
  return proxy;
}

/** A client over a transport of Connect's, and over HTTP/1.1 or gRPC by a URL. */
const over = connect.createInvestorClient;
const overHttp1 = (baseUrl: string, nodeOptions = {}) =>
  over(createConnectTransport({ baseUrl, httpVersion: "1.1", nodeOptions }));
const overHttp2 = (baseUrl: string, nodeOptions = {}) =>
  over(createGrpcTransport({ baseUrl, nodeOptions }));

/** A client of a service that is a function of how many attempts there were. */
function overFunction(reply: (before: number) => object | Promise<object>, options = {}) {
  let attempts = 0;
  const getInvestor = () => reply(attempts++);
  const transport = createRouterTransport((router) =>
    router.service(InvestorService, { getInvestor }),
  );
  return over(transport, options);
}

/** The failure of a call that may be repeated, after so many seconds if that is said. */
const isDown = (seconds?: string) =>
  new ConnectError("it is down", Code.Unavailable, seconds ? { "retry-after": seconds } : {});

/** Has time pass only as the test moves it. */
function stopClock(): void {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "performance"] });
  onTestFinished(() => void vi.useRealTimers());
}

describe("what cannot heal is said at once", () => {
  const lasting = { codeName: "FAILED_PRECONDITION", reason: undefined };

  /** Expects that each client fails for good, by its first attempt. */
  async function expectLasting(clients: grpc.InvestorClient[], message = /./): Promise<void> {
    for (const client of clients) {
      onTestFinished(() => client.close());
      const error = await errorOf(get(client, { timeoutMs: 20_000 }));
      expect(error).toMatchObject({ ...lasting, message: expect.stringMatching(message) });
      expect(error.message).not.toMatch(/after \d+ attempts/);
    }
  }

  it.each([
    ["no URL at all", "127.0.0.1:8080", /Invalid URL/],
    ["of another scheme", "ftp://127.0.0.1", /Protocol "ftp:" not supported/],
    ["without a scheme", "localhost:8080", /Protocol "localhost:" not supported/],
  ])("a base URL that is %s", async (_, baseUrl, message) => {
    await expectLasting([overHttp1(baseUrl)], message);
  });

  it("a certificate that is not trusted, one of another name, and no TLS where it is expected", async () => {
    const authority = await createAuthority();
    const server = await startInProcess(await writeServerFlags(temporaryFolder(), authority));
    const plain = await startInProcess();
    const { ca } = authority;
    const tls = credentials.createSsl(Buffer.from(ca));
    await expectLasting([
      overHttp1(`https://localhost:${server.port}`),
      overHttp2(`https://localhost:${server.port}`),
      overHttp1(`https://localhost:${server.port}`, { ca, servername: "elsewhere.example" }),
      overHttp1(`https://localhost:${plain.port}`, { ca }),
      grpc.createInvestorClient(`localhost:${server.port}`, credentials.createSsl()),
      grpc.createInvestorClient(`localhost:${plain.port}`, tls),
    ]);
  });

  it("a port that speaks another HTTP", async () => {
    const port = await listen(createServer());
    const http2Port = await listen(createHttp2Server());
    await expectLasting([
      overHttp1(`http://localhost:${http2Port}`),
      overHttp2(`http://localhost:${port}`),
      grpc.createInvestorClient(`localhost:${port}`, credentials.createInsecure()),
    ]);
  });

  // Node.js 24 takes an address for a server's name.
  const isAddressName = process.versions.node.startsWith("24.");
  it.skipIf(isAddressName)(
    "grpc-js over TLS to an IP address, with the option that helps",
    async () => {
      const authority = await createAuthority();
      const flags = await writeServerFlags(temporaryFolder(), authority);
      const { port } = await startInProcess(flags);
      const tls = credentials.createSsl(Buffer.from(authority.ca));
      const open = (channelOptions = {}) => {
        const client = grpc.createInvestorClient(`127.0.0.1:${port}`, tls, { channelOptions });
        onTestFinished(() => client.close());
        return client;
      };
      const error = await errorOf(get(open()));
      expect(error).toMatchObject(lasting);
      expect(error.message).toContain("grpc.ssl_target_name_override");
      const named = open({ "grpc.ssl_target_name_override": "localhost" });
      expect((await errorOf(get(named))).codeName).toBe("NOT_FOUND");
    },
  );
});

/** The details of an error by gRPC: one of a type. */
function detailsWith(type: string, value: Uint8Array): Uint8Array {
  const details = [{ typeUrl: `type.googleapis.com/google.rpc.${type}`, value }];
  return toBinary(StatusSchema, create(StatusSchema, { details }));
}

describe("the client behind a proxy", () => {
  it.each([
    ["429", "seconds", 429, () => "1"],
    ["503", "a date", 503, () => new Date(Date.now() + 2_000).toUTCString()],
  ])("waits after a %s for its Retry-After, as %s", async (_, __, status, retryAfter) => {
    const requests: { name: unknown; at: number }[] = [];
    const { clients } = await startProxy((req, res) => {
      requests.push({ name: req.headers["x-name"], at: performance.now() });
      res.writeHead(status, { "retry-after": retryAfter() }).end("too many");
    });
    const calls = Object.entries(clients).map(async ([name, client]) => {
      const error = await errorOf(get(client, { retries: 1, headers: { "x-name": name } }));
      expect(error, name).toMatchObject({ codeName: "UNAVAILABLE", reason: undefined });
      const [first, second] = requests.filter((request) => request.name === name);
      expect((second?.at ?? 0) - (first?.at ?? 0), name).toBeGreaterThan(950);
    });
    await Promise.all(calls);
  });

  it.each(["Connect over HTTP/2", "grpc-js"])(
    "repeats at most five hundred calls more than succeed that a proxy failed, by %s",
    async (name) => {
      const proxy = await startProxy((_, res) => void res.writeHead(503).end());
      const client = proxy.clients[name] as grpc.InvestorClient;
      const options = { retries: 1, timeoutMs: 600_000 };
      await Promise.all(Array.from({ length: 550 }, () => errorOf(get(client, options))));
      // On a busy machine, some attempts fail before they are requests.
      expect(proxy.requests).toBeLessThanOrEqual(1_050);
      expect(proxy.requests).toBeGreaterThan(1_000);
    },
  );

  it.each<[string, details: Uint8Array, retryDelayMs?: number]>([
    ["ask for a delay of a second", detailsWith("RetryInfo", Buffer.of(10, 2, 8, 1)), 1_000],
    ["are no google.rpc.Status", Buffer.from("no status")],
    ["break off", detailsWith("ErrorInfo", Buffer.of(10, 32))],
  ])("reads what it can of an error by gRPC whose details %s", async (_, details, retryDelayMs) => {
    const proxy = await startProxy((_, res) => {
      res.writeHead(200, { "content-type": "application/grpc" });
      res.addTrailers({
        "grpc-status": "13",
        "grpc-message": "out of order",
        "grpc-status-details-bin": Buffer.from(details).toString("base64"),
      });
      res.end();
    });
    const client = proxy.clients["grpc-js"] as grpc.InvestorClient;
    expect(await errorOf(get(client))).toMatchObject({
      codeName: "INTERNAL",
      message: "INTERNAL: out of order",
      reason: undefined,
      retryDelayMs,
    });
    expect(proxy.requests).toBe(1);
  });
});

describe("a signal", () => {
  it("ends a call in flight with its reason as the cause, over each transport", async () => {
    const reason = new Error("enough");
    const controller = new AbortController();
    const { signal } = controller;
    const proxy = await startProxy();
    const calls = Object.values(proxy.clients).map((client) => errorOf(get(client, { signal })));
    await expect.poll(() => proxy.requests).toBe(calls.length);
    controller.abort(reason);
    for (const error of await Promise.all(calls)) {
      expect(error.codeName).toBe("CANCELLED");
      expect(error.cause).toBe(reason);
    }
  });

  it("has one listener, however many calls share it, and none after them", async () => {
    const proxy = await startProxy();
    for (const [name, client] of Object.entries(proxy.clients)) {
      proxy.requests = 0;
      const [shared, own] = [new AbortController(), new AbortController()];
      const calls = Array.from({ length: 20 }, () => get(client, { signal: shared.signal }));
      const all = Promise.all(calls.map(errorOf));
      const other = errorOf(get(client, { signal: own.signal }));
      await expect.poll(() => proxy.requests).toBe(21);
      const listeners = () => getEventListeners(shared.signal, "abort").length;
      expect(listeners(), name).toBe(1);
      own.abort();
      expect((await other).codeName).toBe("CANCELLED");
      expect(listeners()).toBe(1);
      shared.abort();
      await all;
      expect(listeners()).toBe(0);
    }
  });

  it("ends the iteration over all records between two of them, with its reason as the cause", async () => {
    for (const [name, client] of Object.entries(investorClients(await startInProcess()))) {
      for (let count = 0; count < 3; count++) await client.createInvestor(aNew());
      const controller = new AbortController();
      const reason = new Error("enough");
      let seen = 0;
      const all = async () => {
        for await (const _ of client.investors({ signal: controller.signal })) {
          seen += 1;
          controller.abort(reason);
        }
      };
      const error = await errorOf(all());
      expect(error, name).toMatchObject({ codeName: "CANCELLED" });
      expect(error.cause).toBe(reason);
      expect(seen).toBe(1);
    }
  });
});

it("waits 0.2 s at first, twice as long each time with jitter, and never more than 5 s", async () => {
  stopClock();
  const waits: number[][] = [];
  const calls = Array.from({ length: 20 }, async () => {
    const at: number[] = [];
    const client = overFunction(() => {
      at.push(performance.now());
      throw isDown();
    });
    await errorOf(get(client, { timeoutMs: Number.POSITIVE_INFINITY }));
    waits.push(at.slice(1).map((each, i) => each - (at[i] ?? 0)));
  });
  await vi.advanceTimersByTimeAsync(200_000);
  await Promise.all(calls);
  for (const [i, least] of [200, 400, 800, 1_600, 3_200, 5_000, 5_000].entries()) {
    const each = waits.map((all) => all[i] ?? 0);
    expect(Math.min(...each)).toBeGreaterThanOrEqual(least - 1);
    expect(Math.max(...each)).toBeLessThanOrEqual(Math.min(2 * least, 5_000) + 1);
    if (least < 2_500) expect(new Set(each).size).toBeGreaterThan(1);
  }
  for (const each of waits) expect(each).toHaveLength(10);
});

it("waits for a delay that is asked for, whatever its jitter, where the deadline has time for it", async () => {
  stopClock();
  const reply = (before: number) => (before === 0 ? Promise.reject(isDown("20")) : {});
  const calls = Array.from({ length: 20 }, () => get(overFunction(reply), { timeoutMs: 30_000 }));
  const settled = Promise.allSettled(calls);
  await vi.advanceTimersByTimeAsync(30_000);
  expect((await settled).map(({ status }) => status)).toEqual(Array(20).fill("fulfilled"));
});

it("gives an attempt that no other can follow all of the time", async () => {
  stopClock();
  const reply = () => new Promise<object>((resolve) => setTimeout(resolve, 400, {}));
  const settled = Promise.allSettled([get(overFunction(reply), { timeoutMs: 450 })]);
  await vi.advanceTimersByTimeAsync(450);
  expect(await settled).toMatchObject([{ status: "fulfilled" }]);
});

it("has time for another attempt where the service says nothing", async () => {
  stopClock();
  const reply = (before: number) => (before === 0 ? new Promise<object>(() => {}) : {});
  const call = get(overFunction(reply), { timeoutMs: 10_000 });
  await vi.advanceTimersByTimeAsync(10_000);
  expect(await call).toMatchObject({ id: "" });
});

it("repeats nothing with `retries: 0`, nor where the deadline ends before the next attempt", async () => {
  const fail = () => Promise.reject(isDown("86400"));
  const once = { timeoutMs: 100_000_000, retries: 0 };
  for (const call of [
    get(overFunction(fail), { timeoutMs: 80_000_000 }),
    get(overFunction(fail), once),
    get(overFunction(fail, once)),
  ]) {
    // Otherwise it has the number of attempts.
    expect((await errorOf(call)).message).toBe("UNAVAILABLE: it is down");
  }
});

it("repeats nothing after its signal has aborted, which ends the wait", async () => {
  stopClock();
  const controller = new AbortController();
  const seen: number[] = [];
  const client = overFunction((before) => {
    seen.push(before);
    throw isDown("86400");
  });
  const options = { signal: controller.signal, timeoutMs: 1_000_000_000 };
  const call = errorOf(get(client, options));
  await vi.advanceTimersByTimeAsync(60_000);
  controller.abort();
  for (const error of [await call, await errorOf(get(client, options))]) {
    expect(error.codeName).toBe("CANCELLED");
  }
  expect(seen).toEqual([0]);
});
