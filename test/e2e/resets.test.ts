import { once } from "node:events";
import { connect as connectHttp2 } from "node:http2";
import { connect, type Socket } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { connect as connectTls } from "node:tls";
import { createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { describe, expect, it, onTestFinished } from "vitest";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { createAuthority, writeServerFiles } from "../support/certificates.ts";
import { temporaryFolder } from "../support/folder.ts";
import { promptly } from "../support/gate.ts";
import { createRandom, seedOf } from "../support/random.ts";
import { aCreate } from "../support/records.ts";
import { lockDatabase, metric, type Service, startService } from "../support/service.ts";

const rpc = "/investor.v1.InvestorService";
const json = "%7B%7D";

function post(path: string, type: string, body: string): string {
  return `POST ${path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: ${type}\r\ncontent-length: ${body.length}\r\n\r\n${body}`;
}

const emptyFrame = "\0\0\0\0\0";

/** A request of every form that the HTTP port replies to. */
const forms: [string, string][] = [
  ["Connect", post(`${rpc}/ListInvestors`, "application/json", "{}")],
  ["Connect with a charset", post(`${rpc}/ListInvestors`, "application/json; charset=utf-8", "{}")],
  [
    "Connect by GET",
    `GET ${rpc}/ListInvestors?connect=v1&encoding=json&message=${json} HTTP/1.1\r\nhost: localhost\r\n\r\n`,
  ],
  ["Connect of another codec", post(`${rpc}/ListInvestors`, "text/plain", "x")],
  ["gRPC-Web", post(`${rpc}/ListInvestors`, "application/grpc-web+proto", emptyFrame)],
  ["REST", "GET /v1/investors HTTP/1.1\r\nhost: localhost\r\n\r\n"],
  ["REST with a body", post("/v1/investors", "application/json", "{}")],
  ["REST with half a body", post("/v1/investors", "application/json", "{}  ").slice(0, -3)],
  ["readiness", "GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n"],
  ["metrics", "GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n"],
  ["nothing", "GET /nothing HTTP/1.1\r\nhost: localhost\r\n\r\n"],
];

async function startOnTls(env: NodeJS.ProcessEnv = {}) {
  const folder = temporaryFolder();
  const authority = await createAuthority();
  const files = await writeServerFiles(folder, authority);
  return { service: await startService({ ...files, ...env }, folder), authority };
}

/** A TCP connection of the test's own, on which errors are expected. */
async function openTcp(port: number): Promise<Socket> {
  const socket = connect(port, "127.0.0.1").on("error", () => {});
  onTestFinished(() => void socket.destroy());
  await once(socket, "connect");
  return socket;
}

/** Encrypts a connection. */
async function encrypt(tcp: Socket, ca: string, protocol: string) {
  const tls = connectTls({ socket: tcp, ca, servername: "localhost", ALPNProtocols: [protocol] });
  await once(
    tls.on("error", () => {}),
    "secureConnect",
  );
  return tls;
}

/** What the HTTP port replies to a GET. */
async function reply({ httpPort }: Service, path: string, ca?: string): Promise<string> {
  const tcp = await openTcp(httpPort);
  const socket = ca === undefined ? tcp : await encrypt(tcp, ca, "http/1.1");
  socket.write(`GET ${path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n`);
  let text = "";
  for await (const chunk of socket.setEncoding("utf8")) text += chunk;
  return text;
}

/** The value of a metric without labels. */
async function gauge(service: Service, name: string, ca?: string): Promise<number> {
  const text = await reply(service, "/metrics", ca);
  return Number(new RegExp(`^${name} (\\d+)`, "m").exec(text)?.[1]);
}

describe.each(["plain", "TLS"])(
  "connections that are reset behind pipelined requests, %s",
  (kind) => {
    it("end themselves and nothing else, whichever form the requests have", async () => {
      const random = createRandom(seedOf(`resets behind pipelined requests, ${kind}`));
      const { service, authority } =
        kind === "TLS"
          ? await startOnTls()
          : { service: await startService(), authority: undefined };
      for (const [name, form] of forms) {
        for (let i = 0; i < 40; i += 1) {
          const tcp = await openTcp(service.httpPort);
          const socket = authority ? await encrypt(tcp, authority.ca, "http/1.1") : tcp;
          socket.write(form.repeat(random.int(1, 4)));
          if (i % 2 === 1) await delay(random.int(0, 20));
          // The bytes go out first, with the reset right behind them.
          else await new Promise((resolve) => socket.write("", resolve));
          tcp.resetAndDestroy();
        }
        expect(await reply(service, "/readyz", authority?.ca), name).toContain("200 OK");
      }
      expect(service.child.exitCode).toBeNull();
      expect(service.output()).not.toMatch(/"level":(50|60)/);
      await expect
        .poll(() => gauge(service, "rpc_server_calls_in_flight", authority?.ca), promptly)
        .toBe(0);
    });
  },
);

describe("connections on TLS that close with calls in flight", () => {
  const protocols = [
    ["gRPC", "grpcPort", "h2"],
    ["Connect on HTTP/2", "httpPort", "h2"],
    ["Connect on HTTP/1.1", "httpPort", "http/1.1"],
  ] as const;

  it.each(protocols)("take them along: %s", async (name, port, protocol) => {
    const { service, authority } = await startOnTls();
    const { ca } = authority;
    const before = await gauge(service, "process_open_fds", ca);
    const random = createRandom(seedOf(`connections that close, ${name}`));
    const isGrpc = port === "grpcPort";
    for (let i = 0; i < 60; i += 1) {
      const tcp = await openTcp(service[port]);
      const tls = await encrypt(tcp, ca, protocol);
      const calls = random.pick([1, 4, 20, 100]);
      if (protocol === "h2") openCalls(tls, calls, isGrpc);
      else tls.write(post(`${rpc}/ListInvestors`, "application/json", "{}").repeat(calls));
      await new Promise(setImmediate);
      if (i % 2 === 0) tcp.destroy();
      else tcp.resetAndDestroy();
    }
    const inFlight = () => gauge(service, "rpc_server_calls_in_flight", ca);
    await expect.poll(inFlight, { timeout: 10_000, interval: 500 }).toBe(0);
    const descriptors = () => gauge(service, "process_open_fds", ca);
    await expect.poll(descriptors, { timeout: 10_000, interval: 500 }).toBeLessThan(before + 5);
  });

  function openCalls(tls: Socket, count: number, isGrpc: boolean): void {
    const session = connectHttp2("https://localhost", {
      createConnection: () => tls,
      settings: { initialWindowSize: 0 },
    }).on("error", () => {});
    for (let i = 0; i < count; i += 1) {
      const stream = session.request({
        ":method": "POST",
        ":path": `${rpc}/ListInvestors`,
        "content-type": isGrpc ? "application/grpc" : "application/json",
        te: "trailers",
      });
      stream.on("error", () => {}).end(isGrpc ? emptyFrame : "{}");
    }
  }
});

describe("a pipeline that ends in CONNECT", () => {
  it("gives back the slots of the calls before it", async () => {
    const service = await startService();
    const release = lockDatabase(service);
    const { requestId: _, type: __, ...content } = aCreate();
    const body = JSON.stringify({ ...content, type: "individual", firstName: "Ada", city: "Lodz" });
    const create = post("/v1/investors", "application/json", body);
    for (let i = 0; i < 10; i += 1) {
      const socket = await openTcp(service.httpPort);
      socket.write(`${create.repeat(3)}CONNECT x HTTP/1.1\r\nhost: x\r\n\r\n`);
      await once(socket.resume(), "close");
    }
    release();
    await expect.poll(() => gauge(service, "rpc_server_calls_in_flight"), promptly).toBe(0);
  });
});

describe("slow readers", () => {
  /** A service on TLS with short timeouts whose whole list takes some MB. */
  async function startWithMany() {
    const started = await startOnTls({ REQUEST_TIMEOUT: "3s" });
    const transport = createConnectTransport({
      httpVersion: "1.1",
      baseUrl: `https://localhost:${started.service.httpPort}`,
      nodeOptions: { ca: started.authority.ca },
    });
    const client = createClient(InvestorService, transport);
    const long = "\u{1F600}".repeat(256);
    const create = () =>
      client.createInvestor(aCreate({ lastName: long, city: long, state: long }));
    for (let i = 0; i < 20; i += 1) await Promise.all(Array.from({ length: 40 }, create));
    return started;
  }

  it("of the whole list by HTTP/2 get all of it, also after their connection has stalled", async () => {
    const { service, authority } = await startWithMany();
    const tcp = await openTcp(service.httpPort);
    const tls = await encrypt(tcp, authority.ca, "h2");
    const session = connectHttp2("https://localhost", { createConnection: () => tls });
    onTestFinished(() => session.destroy());
    const stream = session.request({ ":path": "/v1/investors" });
    let text = "";
    let hasStalled = false;
    for await (const chunk of stream.setEncoding("utf8")) {
      text += chunk;
      if (hasStalled || text.length < 500_000) continue;
      hasStalled = true;
      tcp.pause();
      await delay(10_000);
      tcp.resume();
    }
    expect(stream.rstCode).toBe(0);
    expect(JSON.parse(text)).toHaveLength(800);
  });
});

describe("unpaired surrogates", () => {
  const body = '{"\\ud800":"x"}';

  it.each([
    ["REST", "/v1/investors", "application/json", body],
    ["Connect", `${rpc}/CreateInvestor`, "application/json", body],
    ["Connect with a charset", `${rpc}/CreateInvestor`, "application/json; charset=utf-8", body],
    ["an enum by Connect", `${rpc}/CreateInvestor`, "application/json", '{"type":"\\udfff"}'],
  ])("in a member by %s are refused as the caller's mistake", async (_, path, type, text) => {
    const service = await startService();
    const reply = await fetch(`http://127.0.0.1:${service.httpPort}${path}`, {
      method: "POST",
      headers: { "content-type": type },
      body: text,
    });
    expect(reply.status).toBe(400);
    expect(await reply.text()).toMatch(/invalid/i);
    expect(await (await fetch(`http://127.0.0.1:${service.httpPort}/readyz`)).text()).toContain(
      "ready",
    );
  });

  it("in a member by gRPC-Web with JSON are refused as the caller's mistake", async () => {
    const service = await startService();
    const message = Buffer.from(body);
    const head = Buffer.from([0, 0, 0, 0, message.length]);
    const reply = await fetch(`http://127.0.0.1:${service.httpPort}${rpc}/CreateInvestor`, {
      method: "POST",
      headers: { "content-type": "application/grpc-web+json" },
      body: Buffer.concat([head, message]),
      signal: AbortSignal.timeout(5_000),
    });
    expect(await reply.text()).toContain("grpc-status: 3");
    await expect.poll(() => metric(service, "rpc_server_calls_in_flight"), promptly).toBe(0);
    expect(
      await metric(
        service,
        "rpc_server_call_duration_seconds_count",
        '{method="investor.v1.InvestorService/CreateInvestor",code="INVALID_ARGUMENT",transport="grpc-web"}',
      ),
    ).toBe(1);
  });
});
