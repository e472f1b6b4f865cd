// What the client makes of calls that fail on the way, are cancelled or held up.
import { getEventListeners } from "node:events";
import { createServer, type RequestListener } from "node:http";
import { createServer as createHttp2Server } from "node:http2";
import { Code, ConnectError, createRouterTransport, type Transport } from "@connectrpc/connect";
import { createConnectTransport, createGrpcTransport } from "@connectrpc/connect-node";
import { credentials } from "@grpc/grpc-js";
import { v7 } from "uuid";
import { describe, expect, it, onTestFinished, vi } from "vitest";
import * as connect from "../client/src/connect.ts";
import * as grpc from "../client/src/grpc.ts";
import { InvestorService } from "../gen/investor/v1/investor_pb.js";
import { createAuthority, writeServerFlags } from "./support/certificates.ts";
import { temporaryFolder } from "./support/folder.ts";
import { errorOf, investorClients } from "./support/investor-clients.ts";
import { aNew } from "./support/records.ts";
import { startInProcess } from "./support/server.ts";
import { listen } from "./support/tcp.ts";

const get = (client: grpc.InvestorClient, options = {}) =>
  client.getInvestor({ id: v7() }, options);

/** Serves HTTP/2 and HTTP/1.1 by one listener, as a proxy would: the clients over each transport. */
async function clientsOfProxy(handle: RequestListener) {
  const http2 = createHttp2Server(handle as Parameters<typeof createHttp2Server>[0]);
  const grpcPort = await listen(http2);
  const httpPort = await listen(createServer(handle));
  return Object.entries(investorClients({ grpcPort, httpPort }));
}

describe("what cannot heal is said at once", () => {
  const lasting = { codeName: "FAILED_PRECONDITION", reason: undefined };
  const repeated = /after \d+ attempts/;

  it.each([
    ["no URL at all", "127.0.0.1:8080", /Invalid URL/],
    ["of another scheme", "ftp://127.0.0.1", /Protocol "ftp:" not supported/],
    ["without a scheme", "localhost:8080", /Protocol "localhost:" not supported/],
  ])("a base URL that is %s", async (_, baseUrl, message) => {
    const transport = createConnectTransport({ baseUrl, httpVersion: "1.1" });
    const error = await errorOf(get(connect.createInvestorClient(transport)));
    expect(error).toMatchObject({ ...lasting, message: expect.stringMatching(message) });
    expect(error.message).not.toMatch(repeated);
  });

  it("a certificate that is not trusted, one of another name, and no TLS where it is expected", async () => {
    const authority = await createAuthority();
    const server = await startInProcess(await writeServerFlags(temporaryFolder(), authority));
    const plain = await startInProcess();
    const ca = authority.ca;
    const overConnect = (baseUrl: string, nodeOptions = {}) =>
      createConnectTransport({ baseUrl, httpVersion: "1.1", nodeOptions });
    const overHttp2 = (baseUrl: string, nodeOptions = {}) =>
      createGrpcTransport({ baseUrl, nodeOptions });
    const transports: Transport[] = [
      overConnect(`https://localhost:${server.httpPort}`),
      overHttp2(`https://localhost:${server.grpcPort}`),
      overConnect(`https://localhost:${server.httpPort}`, { ca, servername: "elsewhere.example" }),
      overConnect(`https://localhost:${plain.httpPort}`, { ca }),
    ];
    const tls = credentials.createSsl(Buffer.from(ca));
    const clients = [
      ...transports.map((transport) => connect.createInvestorClient(transport)),
      grpc.createInvestorClient(`localhost:${server.grpcPort}`, credentials.createSsl()),
      grpc.createInvestorClient(`localhost:${plain.grpcPort}`, tls),
    ];
    for (const client of clients) {
      onTestFinished(() => client.close());
      const error = await errorOf(get(client));
      expect(error).toMatchObject(lasting);
      expect(error.message).not.toMatch(repeated);
    }
  });

  it("a port that speaks another HTTP", async () => {
    const { grpcPort, httpPort } = await startInProcess();
    const transports: Transport[] = [
      createConnectTransport({ baseUrl: `http://localhost:${grpcPort}`, httpVersion: "1.1" }),
      createGrpcTransport({ baseUrl: `http://localhost:${httpPort}` }),
    ];
    const clients = [
      ...transports.map((transport) => connect.createInvestorClient(transport)),
      grpc.createInvestorClient(`localhost:${httpPort}`, credentials.createInsecure()),
    ];
    for (const client of clients) {
      onTestFinished(() => client.close());
      const error = await errorOf(get(client, { timeoutMs: 2_000 }));
      expect(error).toMatchObject(lasting);
      expect(error.message).not.toMatch(repeated);
    }
  });

  it("grpc-js over TLS to an IP address, with the option that helps", async () => {
    const authority = await createAuthority();
    const flags = await writeServerFlags(temporaryFolder(), authority);
    const { grpcPort } = await startInProcess(flags);
    const open = (channelOptions = {}) => {
      const tls = credentials.createSsl(Buffer.from(authority.ca));
      const options = { channelOptions };
      const client = grpc.createInvestorClient(`127.0.0.1:${grpcPort}`, tls, options);
      onTestFinished(() => client.close());
      return client;
    };
    const error = await errorOf(get(open()));
    expect(error).toMatchObject(lasting);
    expect(error.message).toContain("grpc.ssl_target_name_override");
    const named = open({ "grpc.ssl_target_name_override": "localhost" });
    expect((await errorOf(get(named))).codeName).toBe("NOT_FOUND");
  });
});

describe("the client behind a proxy", () => {
  it.each([
    ["429", "seconds", 429, () => "1"],
    ["503", "a date", 503, () => new Date(Date.now() + 2_000).toUTCString()],
  ])("waits after a %s for its Retry-After, as %s", async (_, __, status, retryAfter) => {
    const requests: { name: unknown; at: number }[] = [];
    const clients = await clientsOfProxy((req, res) => {
      requests.push({ name: req.headers["x-name"], at: performance.now() });
      res.writeHead(status, { "retry-after": retryAfter() }).end("too many");
    });
    const calls = clients.map(async ([name, client]) => {
      const error = await errorOf(get(client, { retries: 1, headers: { "x-name": name } }));
      expect(error, name).toMatchObject({ codeName: "UNAVAILABLE", reason: undefined });
      const [first, second] = requests.filter((request) => request.name === name);
      expect((second?.at ?? 0) - (first?.at ?? 0), name).toBeGreaterThan(950);
    });
    await Promise.all(calls);
  });

  it("repeats at most five hundred calls more than succeed that a proxy failed", async () => {
    let requests = 0;
    const clients = await clientsOfProxy((_, res) => {
      requests += 1;
      res.writeHead(503).end();
    });
    const client = new Map(clients).get("Connect over HTTP/2") as grpc.InvestorClient;
    const options = { retries: 1, timeoutMs: 600_000 };
    await Promise.all(Array.from({ length: 550 }, () => errorOf(get(client, options))));
    expect(requests).toBe(1_050);
  });
});

describe("a signal", () => {
  it("ends a call in flight with its reason as the cause, over each transport", async () => {
    const reason = new Error("enough");
    const controller = new AbortController();
    const { signal } = controller;
    let open = 0;
    const clients = await clientsOfProxy(() => {
      open += 1;
    });
    const calls = clients.map(([, client]) => errorOf(get(client, { signal })));
    await expect.poll(() => open).toBe(clients.length);
    controller.abort(reason);
    for (const error of await Promise.all(calls)) {
      expect(error.codeName).toBe("CANCELLED");
      expect(error.cause).toBe(reason);
    }
  });

  it("has one listener, however many calls share it, and none after them", async () => {
    let open = 0;
    const clients = await clientsOfProxy(() => {
      open += 1;
    });
    for (const [name, client] of clients) {
      open = 0;
      const [shared, own] = [new AbortController(), new AbortController()];
      const calls = Array.from({ length: 20 }, () => get(client, { signal: shared.signal }));
      const all = Promise.all(calls.map(errorOf));
      const other = errorOf(get(client, { signal: own.signal }));
      await expect.poll(() => open).toBe(21);
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
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "performance"] });
  onTestFinished(() => void vi.useRealTimers());
  const waits: number[][] = [];
  const calls = Array.from({ length: 20 }, async () => {
    const at: number[] = [];
    const transport = createRouterTransport(({ service }) => {
      service(InvestorService, {
        getInvestor() {
          at.push(performance.now());
          throw new ConnectError("it is down", Code.Unavailable);
        },
      });
    });
    const client = connect.createInvestorClient(transport);
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
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "performance"] });
  onTestFinished(() => void vi.useRealTimers());
  const calls = Array.from({ length: 20 }, () => {
    let isRepeat = false;
    const transport = createRouterTransport(({ service }) => {
      service(InvestorService, {
        getInvestor() {
          if (isRepeat) return {};
          isRepeat = true;
          throw new ConnectError("it is down", Code.Unavailable, { "retry-after": "20" });
        },
      });
    });
    return get(connect.createInvestorClient(transport), { timeoutMs: 30_000 });
  });
  const settled = Promise.allSettled(calls);
  await vi.advanceTimersByTimeAsync(30_000);
  expect((await settled).map(({ status }) => status)).toEqual(Array(20).fill("fulfilled"));
});

it("gives an attempt that no other can follow all of the time", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "performance"] });
  onTestFinished(() => void vi.useRealTimers());
  const transport = createRouterTransport(({ service }) => {
    service(InvestorService, {
      async getInvestor() {
        await new Promise((resolve) => setTimeout(resolve, 400));
        return {};
      },
    });
  });
  const call = get(connect.createInvestorClient(transport), { timeoutMs: 450 });
  const settled = Promise.allSettled([call]);
  await vi.advanceTimersByTimeAsync(450);
  expect(await settled).toMatchObject([{ status: "fulfilled" }]);
});
