import { once } from "node:events";
import { readFileSync, writeFileSync } from "node:fs";
import { connect as connectHttp2 } from "node:http2";
import { connect, type Socket } from "node:net";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { connect as connectTls } from "node:tls";
import { createClient, type Interceptor } from "@connectrpc/connect";
import { createConnectTransport, createGrpcTransport } from "@connectrpc/connect-node";
import { describe, expect, it, onTestFinished } from "vitest";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { createAuthority, writeServerFiles } from "../support/certificates.ts";
import { failureOf } from "../support/errors.ts";
import { temporaryFolder } from "../support/folder.ts";
import {
  clientPreface,
  frameFlag,
  frameType,
  headerBlock,
  http2Frame,
} from "../support/http2-frames.ts";
import { openCall, rawConnection } from "../support/raw-grpc.ts";
import { aCreate } from "../support/records.ts";
import {
  grpcClient,
  lockDatabase,
  metric,
  type Service,
  startService,
} from "../support/service.ts";

const path = "/investor.v1.InvestorService/ListInvestors";
const residentMb = ({ child }: Service) =>
  Number(/VmRSS:\s*(\d+)/.exec(readFileSync(`/proc/${child.pid}/status`, "utf8"))?.[1]) / 1024;

/** How many calls are inside. */
const inFlight = (service: Service) => metric(service, "rpc_server_calls_in_flight");

/** A socket of the test's own, on which errors are expected. */
function own<T extends Socket>(socket: T): T {
  onTestFinished(() => void socket.destroy());
  return socket.on("error", () => {});
}

const request = headerBlock({
  ":method": "POST",
  ":scheme": "http",
  ":path": path,
  ":authority": "localhost",
  "content-type": "application/grpc",
  te: "trailers",
});
const padding = headerBlock({ "x-padding": "x".repeat(100) });
const noFlag = frameFlag.none;

/** Floods of frames; each function makes the n-th of them. */
const floods: [string, (n: number) => Buffer][] = [
  [
    "streams that are reset at once",
    (n) => {
      const stream = 2 * n + 1;
      const { headers, resetStream } = frameType;
      return Buffer.concat([
        http2Frame(headers, frameFlag.endHeaders, stream, request),
        http2Frame(resetStream, noFlag, stream, Buffer.from([0, 0, 0, 8])),
      ]);
    },
  ],
  [
    "headers without an end",
    (n) =>
      n === 0
        ? http2Frame(frameType.headers, noFlag, 1, request)
        : http2Frame(frameType.continuation, noFlag, 1, padding),
  ],
  ["settings", () => http2Frame(frameType.settings, noFlag, 0, Buffer.from([0, 4, 0, 1, 0, 0]))],
  ["pings", () => http2Frame(frameType.ping, noFlag, 0, Buffer.alloc(8))],
];

describe.each(floods)("a flood of %s", (_, frame) => {
  it.each(["gRPC", "HTTP on TLS"])("ends its connection to %s, and nothing else", async (port) => {
    const folder = temporaryFolder();
    const isTls = port !== "gRPC";
    const authority = await createAuthority();
    const env = isTls ? await writeServerFiles(folder, authority) : {};
    const service = await startService(env, folder);
    const neighbour = createClient(
      InvestorService,
      createGrpcTransport({
        baseUrl: `http${isTls ? "s" : ""}://localhost:${service.grpcPort}`,
        nodeOptions: { ca: authority.ca },
      }),
    );
    await neighbour.createInvestor(aCreate());
    const before = residentMb(service);
    const socket = own(
      isTls
        ? connectTls({ port: service.httpPort, ca: authority.ca, ALPNProtocols: ["h2"] })
        : connect(service.grpcPort, "127.0.0.1"),
    );
    await once(socket, isTls ? "secureConnect" : "connect");
    const closed = new Promise((resolve) => socket.once("close", resolve));
    socket.pause();
    socket.write(clientPreface);
    let sent = 0;
    for (; sent < 500_000 && !socket.destroyed; sent += 1_000) {
      const frames = Array.from({ length: 1_000 }, (_, i) => frame(sent + i));
      if (!socket.write(Buffer.concat(frames))) {
        const drained = new Promise((resolve) => socket.once("drain", resolve));
        await Promise.race([drained, closed, delay(1_000)]);
        socket.removeAllListeners("drain");
      }
      // What is there to read tells of the end.
      if (sent > 20_000) socket.resume();
    }
    expect(socket.destroyed).toBe(true);
    expect((await neighbour.listInvestors({})).investors).toHaveLength(1);
    expect(residentMb(service) - before).toBeLessThan(150);
    expect(service.output()).not.toMatch(/"level":(50|60)/);
    service.child.kill("SIGTERM");
    expect(await service.exited).toBe(0);
  });
});

describe("connections that do not get on", () => {
  const head = `POST ${path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n`;

  it.each([
    ["its headers", head, "x-more: 1\r\n"],
    ["its body", `${head}content-length: 60000\r\n\r\n`, "x"],
    ["its chunks", `${head}transfer-encoding: chunked\r\n\r\n`, "1\r\nx\r\n"],
  ])("are closed by HTTP if the client trickles %s", async (_, start, drop) => {
    const service = await startService({ REQUEST_TIMEOUT: "1s" });
    const socket = own(connect(service.httpPort, "127.0.0.1"));
    socket.write(start);
    socket.resume();
    const trickle = setInterval(() => socket.write(drop), 100);
    onTestFinished(() => clearInterval(trickle));
    const began = performance.now();
    await once(socket, "close");
    expect(performance.now() - began).toBeLessThan(5_000);
  });

  it("release their slots if the clients never read", async () => {
    const service = await startService({ REQUEST_TIMEOUT: "1s", MAX_IN_FLIGHT: "20" });
    const client = grpcClient(service);
    const city = "x".repeat(250);
    const records = Array.from({ length: 500 }, () =>
      aCreate({ city, state: city, lastName: city, addressLine1: city }),
    );
    for (let i = 0; i < records.length; i += 20) {
      await Promise.all(records.slice(i, i + 20).map((each) => client.createInvestor(each)));
    }
    const session = rawConnection(service.grpcPort);
    for (let i = 0; i < 10; i += 1) {
      openCall(session, path)
        .pause()
        .end(Buffer.from([0, 0, 0, 0, 3, 8, 0xe8, 7]));
    }
    await expect.poll(() => inFlight(service)).toBe(10);
    const sockets = Array.from({ length: 24 }, () =>
      own(connect(service.httpPort, "127.0.0.1")).pause(),
    );
    // More and more, until the system takes no more replies on behalf of the clients.
    const ask = () => {
      for (const socket of sockets) {
        socket.write(`${head}content-length: 17\r\n\r\n{"pageSize":1000}`);
      }
      return inFlight(service);
    };
    await expect.poll(ask, { timeout: 20_000, interval: 100 }).toBe(20);
    await delay(500);
    expect((await failureOf(client.listInvestors({}))).reason).toBe("OVERLOADED");
    await expect.poll(() => inFlight(service), { timeout: 80_000, interval: 500 }).toBe(0);
    expect((await client.listInvestors({ pageSize: 1 })).investors).toHaveLength(1);
  }, 120_000);
});

describe("strangers who read nothing", () => {
  it("leave the slots to those who may call", async () => {
    const folder = temporaryFolder();
    const authority = await createAuthority();
    writeFileSync(join(folder, "tokens"), "orders 0123456789abcdef0123\n");
    const files = await writeServerFiles(folder, authority);
    const service = await startService({ ...files, AUTH_TOKENS_FILE: "tokens" }, folder);
    const sessions = await Promise.all(
      Array.from({ length: 9 }, async () => {
        const session = connectHttp2(`https://localhost:${service.httpPort}`, {
          ca: authority.ca,
          settings: { initialWindowSize: 0 },
        }).on("error", () => {});
        onTestFinished(() => session.destroy());
        await once(session, "connect");
        return session;
      }),
    );
    for (const session of sessions) {
      for (let i = 0; i < 128; i += 1) {
        session.request({ ":path": "/v1/investors" }).on("error", () => {});
      }
    }
    await delay(500);
    const authorize: Interceptor = (next) => (req) => {
      req.header.set("authorization", "Bearer 0123456789abcdef0123");
      return next(req);
    };
    const options = {
      nodeOptions: { ca: authority.ca },
      httpVersion: "2" as const,
      interceptors: [authorize],
    };
    const clients = [
      createGrpcTransport({ baseUrl: `https://localhost:${service.grpcPort}`, ...options }),
      createConnectTransport({ baseUrl: `https://localhost:${service.httpPort}`, ...options }),
    ].map((transport) => createClient(InvestorService, transport));
    const calls = Array.from({ length: 400 }, async (_, i) => {
      await delay(i * 5);
      return clients[i % 2]?.createInvestor(aCreate());
    });
    const outcomes = await Promise.allSettled(calls);
    const served = outcomes.filter(({ status }) => status === "fulfilled").length;
    expect(served).toBeGreaterThanOrEqual(0.95 * outcomes.length);
  });
});

describe("twenty times as many calls as there are slots", () => {
  it("are refused at once, take little memory, and leave nothing behind", async () => {
    const service = await startService({ MAX_IN_FLIGHT: "50" });
    const clients = Array.from({ length: 20 }, () => grpcClient(service));
    await Promise.all(clients.map((client) => client.listInvestors({})));
    const before = residentMb(service);
    const release = lockDatabase(service);
    let refused = 0;
    const calls = clients.flatMap((client) =>
      Array.from({ length: 50 }, () =>
        client.createInvestor(aCreate()).then(
          () => "stored",
          (error) => {
            refused += 1;
            return error.code as number;
          },
        ),
      ),
    );
    // While all that were admitted still wait.
    await expect.poll(() => refused, { timeout: 20_000 }).toBe(950);
    release();
    const outcomes = await Promise.all(calls);
    expect(outcomes.filter((outcome) => outcome === "stored")).toHaveLength(50);
    expect(residentMb(service) - before).toBeLessThan(150);
    const [client] = clients;
    expect((await client?.listInvestors({ pageSize: 1_000 }))?.investors).toHaveLength(50);
  });
});

describe("bodies that come byte by byte", () => {
  it.each(["application/json", "application/json; charset=utf-8"])(
    "take little more than they are, as %s",
    async (type) => {
      const service = await startService({ REQUEST_TIMEOUT: "60s" });
      const before = residentMb(service);
      const head = [
        "POST /investor.v1.InvestorService/CreateInvestor HTTP/1.1",
        `host: localhost\r\ncontent-type: ${type}\r\ntransfer-encoding: chunked\r\n\r\n`,
      ].join("\r\n");
      const body = "1\r\nx\r\n".repeat(60_000);
      const sent = Array.from({ length: 50 }, async () => {
        const socket = own(connect(service.httpPort, "127.0.0.1"));
        await new Promise((resolve) => socket.write(head + body, resolve));
      });
      await Promise.all(sent);
      await expect.poll(() => inFlight(service), { timeout: 20_000 }).toBe(50);
      await delay(2_000);
      expect(residentMb(service) - before).toBeLessThan(150);
    },
  );
});
