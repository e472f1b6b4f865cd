import { readFileSync, writeFileSync } from "node:fs";
import { connect as connectHttp2 } from "node:http2";
import { request } from "node:https";
import { connect } from "node:net";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { connect as connectTls } from "node:tls";
import { Code, createClient, type Transport } from "@connectrpc/connect";
import {
  createConnectTransport,
  createGrpcTransport,
  createGrpcWebTransport,
} from "@connectrpc/connect-node";
import { v7 } from "uuid";
import { describe, expect, it, onTestFinished } from "vitest";
import { Health } from "../../gen/grpc/health/v1/health_pb.js";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { type Authority, createAuthority, writeServerFiles } from "../support/certificates.ts";
import { failureOf } from "../support/errors.ts";
import { temporaryFolder } from "../support/folder.ts";
import { startIssuer } from "../support/issuer.ts";
import { frame, rawCall } from "../support/raw-grpc.ts";
import { aCreate } from "../support/records.ts";
import { run, type Service, startService } from "../support/service.ts";

const getPath = "/investor.v1.InvestorService/GetInvestor";

interface ClientOptions {
  ca: string;
  cert?: string;
  key?: string;
}

function transportsOf(service: Service, nodeOptions: ClientOptions): [string, Transport][] {
  const http = (httpVersion: "1.1" | "2") => ({
    baseUrl: `https://localhost:${service.httpPort}`,
    httpVersion,
    nodeOptions,
  });
  return [
    [
      "gRPC",
      createGrpcTransport({ baseUrl: `https://localhost:${service.grpcPort}`, nodeOptions }),
    ],
    ["Connect on HTTP/1.1", createConnectTransport(http("1.1"))],
    ["Connect on HTTP/2", createConnectTransport(http("2"))],
    ["gRPC-Web on HTTP/1.1", createGrpcWebTransport(http("1.1"))],
    ["gRPC-Web on HTTP/2", createGrpcWebTransport(http("2"))],
  ];
}

/** The answer of a GET by HTTP/1.1. */
async function get(service: Service, path: string, options: ClientOptions) {
  const url = `https://localhost:${service.httpPort}${path}`;
  return new Promise<{ status: number | undefined; body: string }>((resolve, reject) => {
    request(url, { ...options, agent: false }, (res) => {
      let body = "";
      res.setEncoding("utf8").on("data", (chunk) => {
        body += chunk;
      });
      res.on("end", () => resolve({ status: res.statusCode, body }));
    })
      .on("error", reject)
      .end();
  });
}

/** The common name of the certificate that a port shows. */
async function shownBy(port: number, ca: string): Promise<string | undefined> {
  return new Promise((resolve, reject) => {
    const socket = connectTls({ port, host: "localhost", ca }, () => {
      resolve(socket.getPeerX509Certificate()?.subject);
      socket.destroy();
    }).on("error", reject);
  });
}

async function startWithClientCa(clients: Authority, env: NodeJS.ProcessEnv = {}) {
  const folder = temporaryFolder();
  const authority = await createAuthority();
  writeFileSync(join(folder, "clients.crt"), clients.ca);
  const files = await writeServerFiles(folder, authority);
  const service = await startService({ ...files, TLS_CLIENT_CA: "clients.crt", ...env }, folder);
  return { service, ca: authority.ca };
}

describe("TLS", () => {
  it("carries every protocol, on HTTP/1.1 and HTTP/2", async () => {
    const folder = temporaryFolder();
    const authority = await createAuthority();
    const service = await startService(await writeServerFiles(folder, authority), folder);
    expect(service.output()).toMatch(/grpcs:\/\/127.0.0.1:\d+ and https:\/\/127.0.0.1:\d+/);
    for (const [protocol, transport] of transportsOf(service, { ca: authority.ca })) {
      const client = createClient(InvestorService, transport);
      const created = await client.createInvestor(aCreate({ requestId: v7() }));
      expect(await client.getInvestor({ id: created.id }), protocol).toEqual(created);
      const failure = await failureOf(client.createInvestor({}));
      expect(failure, protocol).toMatchObject({ reason: "INVALID_FIELDS" });
    }
    const list = await get(service, "/v1/investors", { ca: authority.ca });
    expect(JSON.parse(list.body)).toHaveLength(5);
    service.child.kill("SIGTERM");
    expect(await service.exited).toBe(0);
    expect(service.output()).not.toContain("Warning");
  });

  it("carries the whole list to a slow reader, whose connection stalls", async () => {
    const folder = temporaryFolder();
    const { ca, ...authority } = await createAuthority();
    const files = await writeServerFiles(folder, { ca, ...authority });
    const service = await startService({ ...files, REQUEST_TIMEOUT: "3s" }, folder);
    const [, transport] = transportsOf(service, { ca })[1] ?? [];
    if (!transport) throw new Error("there is no transport");
    const client = createClient(InvestorService, transport);
    const long = "\u{1F600}".repeat(256);
    const create = () =>
      client.createInvestor(
        aCreate({
          ...{ firstName: long, middleName: long, lastName: long, city: long, state: long },
          ...{ addressLine1: long, addressLine2: long, zipCode: long },
        }),
      );
    for (let i = 0; i < 20; i += 1) await Promise.all(Array.from({ length: 40 }, create));
    const tcp = connect(service.httpPort, "127.0.0.1");
    const options = { socket: tcp, ca, servername: "localhost", ALPNProtocols: ["h2"] };
    const session = connectHttp2("https://localhost", {
      createConnection: () => connectTls(options),
    });
    onTestFinished(() => session.destroy());
    const stream = session.request({ ":path": "/v1/investors" });
    let text = "";
    let hasStalled = false;
    for await (const chunk of stream.setEncoding("utf8")) {
      text += chunk;
      if (hasStalled || text.length < 100_000) continue;
      hasStalled = true;
      tcp.pause();
      await delay(10_000);
      tcp.resume();
    }
    expect(stream.rstCode).toBe(0);
    expect(JSON.parse(text)).toHaveLength(800);
  });

  it("loses no reply to a call that is refused while its connection is being set up", async () => {
    const folder = temporaryFolder();
    const authority = await createAuthority();
    const issuer = await startIssuer();
    const env = { OIDC_ISSUER: issuer.url, OIDC_AUDIENCE: "investors" };
    const files = await writeServerFiles(folder, authority);
    const service = await startService({ ...files, ...env }, folder);
    const headers = { authorization: `Bearer ${await issuer.sign({ sub: "" })}` };
    const ask = async () => {
      const session = connectHttp2(`https://localhost:${service.grpcPort}`, { ca: authority.ca });
      const { status } = await rawCall(session, getPath, frame(Buffer.alloc(0)), headers);
      session.destroy();
      return status;
    };
    for (let i = 0; i < 50; i += 1) {
      const statuses = await Promise.all(Array.from({ length: 10 }, ask));
      expect(statuses).toEqual(Array(10).fill(Code.Unauthenticated));
    }
  });

  it("is renewed on SIGHUP without dropping a call; wrong files change nothing", async () => {
    const folder = temporaryFolder();
    const authority = await createAuthority();
    const files = await writeServerFiles(folder, authority, "first.example");
    const service = await startService(files, folder);
    const options = { ca: authority.ca };
    let isDone = false;
    const calls = transportsOf(service, options).map(async ([, transport]) => {
      const client = createClient(InvestorService, transport);
      while (!isDone) await client.createInvestor(aCreate());
    });
    await writeServerFiles(folder, authority, "second.example");
    service.child.kill("SIGHUP");
    for (const port of [service.grpcPort, service.httpPort]) {
      await expect.poll(() => shownBy(port, authority.ca)).toContain("second.example");
    }
    writeFileSync(join(folder, "server.key"), "no key");
    service.child.kill("SIGHUP");
    await expect.poll(() => service.output()).toContain("TLS_KEY");
    for (const port of [service.grpcPort, service.httpPort]) {
      expect(await shownBy(port, authority.ca)).toContain("second.example");
    }
    isDone = true;
    await Promise.all(calls);
  });

  it("reads tokens again on SIGHUP though a certificate cannot be used, and says both", async () => {
    const folder = temporaryFolder();
    const files = await writeServerFiles(folder, await createAuthority());
    writeFileSync(join(folder, "tokens"), "token-of-sixteen-1\n");
    const service = await startService({ ...files, AUTH_TOKENS_FILE: "tokens" }, folder);
    writeFileSync(join(folder, "server.crt"), "no certificate");
    writeFileSync(join(folder, "tokens"), "token-of-sixteen-2\n");
    service.child.kill("SIGHUP");
    await expect.poll(() => service.output()).toContain('"reloaded tokens"');
    expect(service.output()).toMatch(
      /TLS_CERT .* is not a certificate in PEM; the previous one stays/,
    );
  });

  it("takes no file of client authorities that holds anything but certificates", async () => {
    const authority = await createAuthority();
    const { service } = await startWithClientCa(authority);
    const { folder, child, output } = service;
    const key = readFileSync(join(folder, "server.key"), "utf8");
    const damaged = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";
    const refusal = "TLS_CLIENT_CA clients.crt is not a certificate in PEM";
    for (const content of ["", "orders token-of-sixteen-1", key, authority.ca + damaged]) {
      writeFileSync(join(folder, "clients.crt"), content);
      const before = output().split(refusal).length;
      child.kill("SIGHUP");
      await expect.poll(() => output().split(refusal).length).toBe(before + 1);
      const env = { TLS_CERT: "server.crt", TLS_KEY: "server.key", TLS_CLIENT_CA: "clients.crt" };
      const refused = run(["serve"], env, folder);
      expect(await refused.exited).toBe(2);
      expect(refused.output()).toContain(refusal);
    }
    expect(output()).not.toContain("reloaded");
  });

  it("refuses what is not encrypted", async () => {
    const folder = temporaryFolder();
    const authority = await createAuthority();
    const service = await startService(await writeServerFiles(folder, authority), folder);
    await expect(fetch(`http://localhost:${service.httpPort}/healthz`)).rejects.toThrow();
    const plain = createGrpcTransport({ baseUrl: `http://localhost:${service.grpcPort}` });
    await expect(createClient(Health, plain).check({})).rejects.toThrow();
    expect((await get(service, "/healthz", { ca: authority.ca })).status).toBe(200);
  });

  it.each([
    ["a certificate without its key", { TLS_CERT: "server.crt" }, "TLS_CERT and --tls-key"],
    [
      "client certificates without TLS",
      { TLS_CLIENT_CA: "server.crt" },
      "TLS_CLIENT_CA needs --tls-cert",
    ],
    ["a file that is not there", { TLS_CERT: "x.crt", TLS_KEY: "server.key" }, "TLS_CERT x.crt"],
    ["a file in no PEM", { TLS_CERT: "text", TLS_KEY: "server.key" }, "TLS_CERT text"],
    [
      "a key of another certificate",
      { TLS_CERT: "server.crt", TLS_KEY: "other.key" },
      "not the key",
    ],
  ])("stops the start on %s", async (_, env, named) => {
    const folder = temporaryFolder();
    const authority = await createAuthority();
    await writeServerFiles(folder, authority);
    writeFileSync(join(folder, "text"), "text");
    writeFileSync(join(folder, "other.key"), (await authority.sign("other")).key);
    const { exited, output } = run([], env, folder);
    expect(await exited).toBe(2);
    expect(output()).toContain(named);
  });
});

describe("client certificates", () => {
  it("tell who calls; without one, health alone replies", async () => {
    const clients = await createAuthority("Clients");
    const { service, ca } = await startWithClientCa(clients);
    const own = await clients.sign("backend.example");
    const other = await (await createAuthority("Others")).sign("backend.example");
    for (const [protocol, transport] of transportsOf(service, { ca, ...own })) {
      const client = createClient(InvestorService, transport);
      await client.createInvestor(aCreate());
      expect((await client.listInvestors({})).investors.length, protocol).toBeGreaterThan(0);
    }
    for (const [credentials, reason] of [
      [{ ca, ...other }, "CREDENTIALS_INVALID"],
      [{ ca }, "CREDENTIALS_MISSING"],
    ] as const) {
      const transports = transportsOf(service, credentials);
      for (const [protocol, transport] of transports) {
        const failure = await failureOf(createClient(InvestorService, transport).listInvestors({}));
        expect(failure, protocol).toMatchObject({ code: "Unauthenticated", reason });
      }
      const [[, grpc] = []] = transports;
      if (grpc) await createClient(Health, grpc).check({});
      expect((await get(service, "/readyz", credentials)).status).toBe(200);
      expect((await get(service, "/v1/investors", credentials)).status).toBe(401);
      expect((await get(service, "/metrics", credentials)).status).toBe(401);
    }
    expect((await get(service, "/metrics", { ca, ...own })).status).toBe(200);
  });

  it("keep the records of one subject's request ids apart from another's", async () => {
    const clients = await createAuthority("Clients");
    const { service, ca } = await startWithClientCa(clients);
    const request = aCreate({ requestId: "9b2c1d4e-5f60-4a7b-8c9d-0e1f2a3b4c5d" });
    // Under "certificate CN=one.example" and so on; others would make a second record of a replay.
    for (const [name, id] of [
      ["one.example", "cdcf9622-7cca-873a-a791-08f1d656eaab"],
      ["two.example", "b035a9e4-c480-883b-a9ab-f7559047bffe"],
      ["one.example", "cdcf9622-7cca-873a-a791-08f1d656eaab"],
    ] as const) {
      const [[, transport] = []] = transportsOf(service, { ca, ...(await clients.sign(name)) });
      if (!transport) throw new Error("there is no transport");
      const client = createClient(InvestorService, transport);
      expect((await client.createInvestor(request)).id).toBe(id);
    }
  });

  it("let the service listen beyond this machine", async () => {
    const clients = await createAuthority("Clients");
    const { service } = await startWithClientCa(clients, { HOST: "0.0.0.0" });
    expect(service.output()).toContain("grpcs://0.0.0.0:");
  });
});
